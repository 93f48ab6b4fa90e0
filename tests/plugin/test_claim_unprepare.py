"""Giving a claim back: nothing of ours stays, nothing of others goes, and what cannot be done now is tried again."""

from __future__ import annotations

import pytest
from tesela.core.model import ClaimRef
from tesela.core.record import ClaimState
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process
from tesela.plugin.service import ClaimService

STRANGER = ClaimRef(namespace="default", name="stranger", uid="8f1e4c1a-0000-4d7e-9a57-7e5e1a000001")


@pytest.fixture
def ref(world):
    """A claim that holds two partitions and a whole GPU."""
    ref = world.claim("a", world.partition(0, "1g.5gb", 6), world.partition(2, "3g.40gb", 0), "gpu-1")
    world.serve(ref)
    return ref


def test_nothing_is_left(world, ref):
    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_the_locks_file_goes_too(world, ref):
    world.unprepare(ref)

    assert list((world.state_dir / "locks").glob("claim-*")) == []


def test_an_unknown_claim_is_a_success(world):
    assert world.unprepare(STRANGER) is None


def test_unpreparing_twice_is_a_success(world, ref):
    world.unprepare(ref)

    assert world.unprepare(ref) is None


def test_it_needs_no_api_object(world, ref):
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_the_neighbours_stay(world, ref):
    neighbour = world.claim("b", world.partition(0, "1g.5gb", 0))
    world.serve(neighbour)

    world.unprepare(ref)

    assert [instance.placement.start for instance in world.instances(0)] == [0]


def test_a_partition_in_use_keeps_the_claim_and_names_its_process(world, ref):
    gi_id = world.instances(0)[0].gi_id
    world.machine.add_process("0", Process(pid=4711, gi_id=gi_id, ci_id=0, name="trainer"))

    sentence = world.unprepare(ref)

    assert "is in use by trainer (pid 4711); end that process" in sentence


def test_a_partition_in_use_is_given_back_later(world, ref):
    gi_id = world.instances(0)[0].gi_id
    world.machine.add_process("0", Process(pid=4711, gi_id=gi_id, ci_id=0, name="trainer"))
    world.unprepare(ref)
    world.machine.remove_process("0", 4711)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_a_process_that_ends_soon_is_waited_for(world, ref):
    """Two attempts within one call; the first meets a handle that is not closed yet."""
    world.start(in_use_retry_s=5.0)
    world.machine.inject(Fault(function="destroy_gpu_instance", code=codes.IN_USE))

    assert world.unprepare(ref) is None


def test_what_nvml_refuses_is_said_and_tried_again(world, ref):
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    assert "cannot be given back: nvmlGpuInstanceDestroy: Unknown Error (999)" in world.unprepare(ref)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_an_instance_that_went_meanwhile_is_done(world, ref):
    world.machine.inject(Fault(function="destroy_compute_instance", code=codes.NOT_FOUND, when="after"))

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_an_unprepare_that_stopped_after_the_compute_instance_goes_on(world, ref):
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    world.unprepare(ref)
    world.start()

    assert world.leftovers() == []


def test_a_claim_half_given_back_is_not_handed_out(world, ref):
    """A prepare after it makes everything anew."""
    before = world.record(ref).devices[0].current.mig_uuid
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    world.unprepare(ref)

    record = world.serve(ref)

    assert (record.state, record.devices[0].current.mig_uuid == before) == (ClaimState.PREPARED, False)


def test_what_others_made_in_the_place_of_a_claim_half_given_back_stays(build):
    """Its own was given back by hand meanwhile, and the new one has the same id and no UUID: two compute instances."""
    world = build("a100-40gb:mig")
    ref = world.claim("a", world.partition(0, "2g.10gb", 0))
    gi_id = world.serve(ref).devices[0].current.gi_id
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    world.unprepare(ref)
    admin, uuid = world.admin, world.uuid(0)
    admin.destroy_gpu_instance(uuid, gi_id)
    placement = world.record(ref).devices[0].current.placement
    made = admin.create_gpu_instance(uuid, 14, placement).gi_id
    for _ in range(2):
        admin.create_compute_instance(uuid, made, 0)
    world.foreign.add((uuid, made))

    world.unprepare(ref)

    assert len(world.instances(0)) == 1


def test_one_stubborn_claim_of_a_pod_keeps_no_other(world, ref):
    other = world.claim("b", world.partition(0, "1g.5gb", 0))
    world.serve(other)
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    world.promised.clear()

    answers = ClaimService(world.node).unprepare([ref, other], 20.0)

    assert (answers[ref.uid] is None, answers[other.uid]) == (False, None)
