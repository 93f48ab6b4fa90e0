"""NVML answers SUCCESS and means something else: what it did is looked at, not believed."""

from __future__ import annotations

import pytest
from tesela.core.record import ClaimState
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault

DESTROYS = ["destroy_gpu_instance", "destroy_compute_instance"]


@pytest.fixture
def ref(world):
    """A claim that holds a partition."""
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    return ref


def lie(world, function, times=1):
    world.machine.inject(Fault(function=function, code=codes.SUCCESS, times=times))


@pytest.mark.parametrize("function", DESTROYS)
def test_an_instance_that_stays_is_named(world, ref, function):
    lie(world, function, times=None)

    sentence = world.unprepare(ref)

    assert ("GPU instance 13 of GPU" in sentence, "and it is still there" in sentence) == (True, True)


@pytest.mark.parametrize("function", DESTROYS)
def test_a_claim_whose_instance_stays_keeps_its_record(world, ref, function):
    lie(world, function, times=None)
    world.unprepare(ref)

    assert world.record(ref).state is ClaimState.UNPREPARING


@pytest.mark.parametrize("function", DESTROYS)
def test_an_instance_that_stays_is_destroyed_by_the_next_call(world, ref, function):
    lie(world, function)
    world.unprepare(ref)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


@pytest.mark.parametrize("function", DESTROYS)
def test_an_instance_that_stays_once_is_destroyed_within_the_call(world, ref, function):
    world.start(in_use_retry_s=5.0)
    lie(world, function)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_a_roll_back_that_leaves_an_instance_keeps_its_record(world):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.machine.inject(Fault(function="create_compute_instance"))
    lie(world, "destroy_gpu_instance", times=None)
    world.refuse(ref)

    assert (world.record(ref).state, len(world.instances(0))) == (ClaimState.PREPARING, 1)
