"""The driver dies while it starts: while it looks at the machine, and while it recovers what another death left."""

from __future__ import annotations

import itertools

import pytest
from node_tap import Crash, Tap
from node_world import make_world
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.simulator.faults import Fault
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.plugin.recover import rebuild, recover_claim, remove_orphan_files

SLICING = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
PARAMETERS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": SLICING}
TIME_SLICE = ({"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": PARAMETERS}},)


@pytest.fixture
def build_tapped(tmp_path):
    def build(tap):
        world = make_world(tmp_path, "a100-40gb:mig,a100-40gb", wrap=tap.wrap)
        world.install_smi()
        return world

    return build


def claim_partition(world, name):
    return world.claim(name, world.partition(0, "1g.5gb", 6))


def half_prepared(world, name):
    ref = claim_partition(world, name)
    world.machine.inject(Fault(function="create_compute_instance"))
    world.machine.inject(Fault(function="destroy_gpu_instance", times=2))
    world.refuse(ref)
    return ref


def half_given_back(world, name):
    ref = claim_partition(world, name)
    world.serve(ref)
    world.machine.inject(Fault(function="destroy_gpu_instance"))
    world.unprepare(ref)
    return ref


def prepared(world, name):
    ref = claim_partition(world, name)
    world.serve(ref)
    world.cdi_path(ref).unlink()
    return ref


def lost(world, name):
    ref = claim_partition(world, name)
    world.serve(ref)
    world.reset(0)
    return ref


def damaged(world, name):
    ref = claim_partition(world, name)
    world.serve(ref)
    world.record_path(ref).write_text("{")
    return ref


def time_sliced_before_a_boot(world, name):
    ref = world.claim(name, "gpu-1", configs=TIME_SLICE)
    world.serve(ref)
    world.machine.reboot()
    world.lost_gpus.add(world.uuid(1))
    return ref


def files_of_nobody(world, name):
    """A driver died between the files of a claim and its record."""
    ref = claim_partition(world, name)
    CdiFiles(world.cdi_dir).write(ref.uid, {})
    MetadataFiles(world.state_dir).write(ref.uid, "r0", b"{}")
    return ref


LEFT = [half_prepared, half_given_back, prepared, lost, damaged, time_sliced_before_a_boot, files_of_nobody]


def recover(world):
    """What `Recovery` does, in this thread, so that a death ends it."""
    listing = world.node.records.list()
    for one in listing.unreadable:
        rebuild(world.node, one)
    remove_orphan_files(world.node)
    for record in listing.records:
        recover_claim(world.node, record.claim.uid)


def look(world):
    world.node.lookout.refresh()


def crash_everywhere(world, tap, leave, phase, before, act):
    for number in itertools.count():
        tap.disarm()
        ref = leave(world, f"c{number}")
        world.node = world.build()
        before(world)
        tap.crash(number, phase)
        try:
            act(world)
        except Crash:
            tap.disarm()
        else:
            return
        world.start()
        world.check()
        assert (world.unprepare(ref), world.leftovers()) == (None, []), f"after a death at call {number}"
        world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
        world.lost_gpus.clear()


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("leave", LEFT)
def test_a_death_while_a_death_is_recovered(build_tapped, leave, phase):
    tap = Tap()

    crash_everywhere(build_tapped(tap), tap, leave, phase, look, recover)


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("leave", [half_prepared, lost])
def test_a_death_while_the_machine_is_looked_at(build_tapped, leave, phase):
    tap = Tap(looks=True)

    crash_everywhere(build_tapped(tap), tap, leave, phase, lambda world: None, look)
