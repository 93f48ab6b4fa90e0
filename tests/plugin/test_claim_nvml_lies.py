"""NVML answers SUCCESS and means something else: what it did is looked at, not believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tesela.core.model import Placement
from tesela.core.record import ClaimState
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault

DESTROYS = ["destroy_gpu_instance", "destroy_compute_instance"]


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


class Elsewhere:
    """NVML that makes GPU instances where it likes, as its call without a placement does."""

    def __init__(self, inner, placement):
        self._inner, self._placement = inner, placement

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def create_gpu_instance(self, gpu_uuid, profile_id, placement):
        return self._inner.create_gpu_instance(gpu_uuid, profile_id, self._placement)


@pytest.fixture
def elsewhere(world):
    """A world whose NVML makes every 1g.5gb at slice 3."""
    world.wrap = lambda ports: replace(ports, nvml=Elsewhere(ports.nvml, Placement(start=3, size=1)))
    world.start()
    return world


def test_an_instance_that_is_made_elsewhere_refuses_the_claim_and_goes(elsewhere):
    sentence = elsewhere.refuse(elsewhere.claim("a", elsewhere.partition(0, "1g.5gb", 6)))

    assert ("at 3 size 1 instead, which was destroyed again" in sentence, elsewhere.leftovers()) == (True, [])


def test_an_instance_that_is_made_elsewhere_and_stays_is_left_to_a_human_in_words(elsewhere):
    elsewhere.machine.inject(Fault(function="destroy_gpu_instance"))

    sentence = elsewhere.refuse(elsewhere.claim("a", elsewhere.partition(0, "1g.5gb", 6)))

    assert "which nobody holds and must be destroyed by hand" in sentence
    elsewhere.foreign = {(elsewhere.uuid(0), instance.gi_id) for instance in elsewhere.instances(0)}
