"""Which partition an event is about: what lives under its id, else what is recorded under it, else the whole GPU."""

from __future__ import annotations

import logging

import pytest
from node_world import World
from tesela.core.errors import StateError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault
from tesela.plugin.health.attribution import Attribution


@pytest.fixture
def attribution(world: World) -> Attribution:
    return attribute(world, world.node.records)


def attribute(world, records):
    return Attribution(nvml=world.node.nvml, records=records, roster=lambda: world.node.lookout.roster)


def silence(world):
    """NVML tells nothing of the instances of GPU 0 any more."""
    fault = Fault(function="get_gpu_instance_by_id", gpu=world.uuid(0), code=codes.GPU_IS_LOST, times=None)
    world.machine.inject(fault)


def serve(world, start=4):
    """A claim's partition on GPU 0; its id."""
    record = world.serve(world.claim(f"at-{start}", world.partition(0, "1g.5gb", start)))
    return record.devices[0].partitions[0].gi_id


def test_an_instance_that_lives_tells_its_placement(world, attribution):
    gi_id = world.make_foreign(0, "3g.20gb", 4)

    assert attribution.find_placement(world.uuid(0), gi_id) == Placement(start=4, size=4)


def test_one_whose_gpu_does_not_answer_is_found_in_the_records(world, attribution):
    gi_id = serve(world)
    silence(world)

    assert attribution.find_placement(world.uuid(0), gi_id) == Placement(start=4, size=1)


def test_the_same_id_on_another_gpu_is_another_instance(world, attribution):
    gi_id = serve(world)

    assert attribution.find_placement(world.uuid(1), gi_id) is None


def test_one_that_nobody_knows_has_no_placement(world, attribution):
    serve(world)

    assert attribution.find_placement(world.uuid(0), 13) is None


def test_an_id_of_before_a_reset_is_no_longer_its(world, attribution):
    """The claim still has its record, since its containers may run: ids are given again elsewhere on the GPU."""
    gi_id = serve(world)
    world.reset(0)
    world.look()

    assert attribution.find_placement(world.uuid(0), gi_id) is None


class Unreadable:
    """Records on a disk that fails."""

    def list(self):
        raise StateError("the folder cannot be read")


def test_records_that_cannot_be_read_make_it_an_event_of_the_whole_gpu(world):
    assert attribute(world, Unreadable()).find_placement(world.uuid(0), 13) is None


def test_a_storm_of_an_instance_that_is_gone_is_said_once(world, attribution, caplog):
    caplog.set_level(logging.INFO, logger="tesela.plugin.health.attribution")

    for _ in range(100):
        attribution.find_placement(world.uuid(0), 13)

    assert len(caplog.records) == 1
