"""What an allocation may say that this release, this policy or this driver does not serve: refused by name."""

from __future__ import annotations

import pytest
from tesela.core.record import ClaimState
from tesela.core.shape import Policy, PolicyRule, Shape

SHARE = "11111111-1111-4111-8111-111111111111"


# Consumable shares


@pytest.mark.parametrize("device", ["gpu-1", "gpu-0-mig-1g5gb-19-0"])
def test_a_share_is_refused_by_name(world, device):
    sentence = world.refuse(world.claim("a", device, shareID=SHARE))

    assert f"device {device}: it was allocated as a share of a device, and Tesela does not serve" in sentence


def test_a_share_of_a_gpu_that_is_held_leaves_its_holder_alone(world):
    holder = world.claim("holder", "gpu-1")
    world.serve(holder)
    world.refuse(world.claim("late", "gpu-1", shareID=SHARE))

    assert world.record(holder).state is ClaimState.PREPARED


# Device names


@pytest.mark.parametrize("label", ["xyz", "2g5gb", "1g5", "mig", "1g5gb-", "1c1g5gb"])
def test_a_label_that_no_driver_gives_to_the_profile_is_refused(world, label):
    device = f"gpu-0-mig-{label}-19-0"

    assert f"claim default/a: device {device}: " in world.refuse(world.claim("a", device))


@pytest.mark.parametrize("label", ["1g5gb", "1g6gb", "1g5gb-me"])
def test_a_partition_allocated_under_an_older_drivers_name_is_served(world, label):
    world.serve(world.claim("a", f"gpu-0-mig-{label}-19-0"))

    assert [(one.profile, one.placement.start) for one in world.instances(0)] == [("1g.5gb", 0)]


def test_one_partition_is_not_given_under_two_names(world):
    world.serve(world.claim("holder", "gpu-0-mig-1g5gb-19-0"))

    assert "still held by claim default/holder" in world.refuse(world.claim("late", "gpu-0-mig-1g6gb-19-0"))


# The policy, where it changed after a claim was allocated


def obey(world, **rule):
    world.policy = Policy(rules=(PolicyRule(**rule),))
    world.start()


WITHHELD = [
    ({"mode": Shape.IGNORE}, "gpu-1", "is set to ignore in the policy file"),
    ({"mode": Shape.IGNORE}, "gpu-0-mig-1g5gb-19-0", "is set to ignore in the policy file"),
    ({"mode": Shape.WHOLE}, "gpu-0-mig-1g5gb-19-0", "is set to be given whole in the policy file"),
    ({"mode": Shape.WHOLE}, "gpu-2-mig-1g10gb-19-0", "is set to be given whole in the policy file"),
    (
        {"mode": Shape.ON_DEMAND, "allowed_profiles": ("3g.20gb", "2g.10gb")},
        "gpu-0-mig-1g5gb-19-0",
        "is set to the profiles 3g.20gb, 2g.10gb in the policy file",
    ),
]


@pytest.mark.parametrize(("rule", "device", "expected"), WITHHELD)
def test_a_device_that_the_policy_withholds_is_refused(world, rule, device, expected):
    ref = world.claim("a", device)
    obey(world, **rule)

    sentence = world.refuse(ref)

    assert (expected in sentence, f"claim default/a: device {device}: " in sentence, world.leftovers()) == (
        True,
        True,
        [],
    )


def test_a_static_gpu_is_not_taken_out_of_mig_mode(world):
    world.set_mig(2, on=True)
    obey(world, mode=Shape.STATIC)

    assert "is in MIG mode and set to static partitions" in world.refuse(world.claim("a", "gpu-2"))


def test_a_static_gpu_is_not_cut_though_its_mode_was_switched_a_moment_ago(world):
    """The last look saw it whole."""
    obey(world, mode=Shape.STATIC)
    world.set_mig(2, on=True)

    world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert world.instances(2) == ()


@pytest.mark.parametrize("mode", [Shape.IGNORE, Shape.WHOLE])
def test_what_a_claim_holds_is_made_again_whatever_the_policy_says_now(world, mode):
    ref = world.claim("a", "gpu-0-mig-1g5gb-19-0")
    world.serve(ref)
    obey(world, mode=mode)
    world.reset(0)
    world.look()

    world.serve(ref)

    assert len(world.instances(0)) == 1


def test_admin_access_sees_what_lives_whatever_the_policy_says(world):
    world.serve(world.claim("owner", "gpu-0-mig-1g5gb-19-0"))
    obey(world, mode=Shape.IGNORE)

    world.serve(world.claim("watcher", "gpu-0-mig-1g5gb-19-0", adminAccess=True))
