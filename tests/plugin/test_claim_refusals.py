"""What an allocation may say that this release, this policy or this driver does not serve: refused by name."""

from __future__ import annotations

import pytest
from tesela.core.record import ClaimState

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
