"""Instances that an administrator made fence what they overlap: complete or not, on GPUs of every shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_models import a100, h100, live, roster
from slice_world import devices_of, holding, state, taints_of
from tesela.core.geometry import overlap
from tesela.core.naming import PartitionName, parse_device_name
from tesela.core.shape import Policy, PolicyRule, Shape

FOREIGN = "gpu.nvidia.com/foreign"
STATES = [{}, {"mig_uuid": None, "ci_id": None}, {"mig_uuid": None}]
STATE_NAMES = ["complete", "without compute instance", "with several compute instances"]


def policy(mode):
    return Policy(rules=(PolicyRule(mode=mode),))


def fenced(pool):
    return {
        name for name, device in devices_of(pool).items() if FOREIGN in {key for key, _ in taints_of(device)}
    }  # fmt: skip


def overlapping(gpu, placement, names):
    """The devices among `names` that touch these memory slices, the whole GPU among them."""
    profiles = {profile.profile_id: profile for profile in gpu.profiles}
    found = set()
    for name in names:
        parsed = parse_device_name(name)
        if not isinstance(parsed, PartitionName):
            found.add(name)
            continue
        own = next(p for p in profiles[parsed.profile_id].placements if p.start == parsed.start)
        if overlap(own, placement):
            found.add(name)
    return found


@pytest.mark.parametrize("facts", STATES, ids=STATE_NAMES)
@pytest.mark.parametrize("gpu", [a100(), h100(mig_enabled=True)], ids=["fixed mode", "free mode"])
def test_on_demand_fences_exactly_what_overlaps(gpu, facts):
    name = next(profile.name for profile in gpu.profiles if profile.name.startswith("2g"))
    made = replace(live(gpu, name, 2), **facts)
    pool = state(roster(gpu), live=(made,))

    assert fenced(pool) == overlapping(gpu, made.placement, devices_of(pool))


@pytest.mark.parametrize("facts", STATES, ids=STATE_NAMES)
def test_a_gpu_that_is_given_whole_is_fenced(facts):
    gpu = h100(mig_enabled=True)
    made = replace(live(gpu, "1g.10gb", 6), **facts)

    assert fenced(state(roster(gpu), policy=policy(Shape.WHOLE), live=(made,))) == {"gpu-0"}


@pytest.mark.parametrize("facts", STATES[1:], ids=STATE_NAMES[1:])
def test_static_does_not_offer_what_is_no_single_mig_device(facts):
    gpu = a100()
    made = replace(live(gpu, "3g.20gb", 0), **facts)
    pool = state(roster(gpu), policy=policy(Shape.STATIC), live=(made, live(gpu, "3g.20gb", 4, gi_id=2)))

    assert (list(devices_of(pool)), fenced(pool)) == (["gpu-0-mig-3g20gb-9-4"], set())


@pytest.mark.parametrize("facts", STATES, ids=STATE_NAMES)
def test_what_a_claim_holds_of_an_ignored_gpu_is_fenced_too(facts):
    """The claim's own partition went, and somebody made another one over its place."""
    gpu = a100()
    made = replace(live(gpu, "3g.20gb", 0), **facts)
    held = holding(gpu, "gpu-0-mig-1g5gb-19-0")

    assert fenced(state(roster(gpu), policy=policy(Shape.IGNORE), live=(made,), records=(held,))) == {
        "gpu-0-mig-1g5gb-19-0"
    }
