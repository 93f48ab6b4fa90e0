"""Files that vanish come back, files of nobody go, fabric is waited for, and a claim in somebody's hands is his."""

from __future__ import annotations

import threading

import pytest
from node_world import DEADLINE_S
from tesela.core.errors import TryAgain
from tesela.core.record import ClaimState
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import FabricInfo
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.locks import hold
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.plugin.deadline import Deadline
from tesela.plugin.gate import RecoveryGate

NOBODY = "8f1e4c1a-0000-4d7e-9a57-7e5e1a000001"


# Files


def test_a_cdi_file_that_vanishes_while_the_driver_runs_comes_back_as_it_was(world, ref):
    before = world.cdi_path(ref).read_text()
    world.cdi_path(ref).unlink()

    world.look()

    assert world.cdi_path(ref).read_text() == before


def test_a_cdi_file_that_vanished_comes_back_at_start(world, ref):
    world.cdi_path(ref).unlink()

    world.start()

    assert world.cdi_path(ref).exists()


@pytest.mark.parametrize("look", [lambda world: world.look(), lambda world: world.start()], ids=["look", "start"])
def test_metadata_that_vanished_comes_back(world, ref, look):
    """The claim's CDI file mounts it, so a container could not start without."""
    MetadataFiles(world.state_dir).remove(ref.uid)

    look(world)

    assert MetadataFiles(world.state_dir).path(ref.uid, "r0").exists()


def test_files_of_nobody_go_at_start(world):
    CdiFiles(world.cdi_dir).write(NOBODY, {})
    MetadataFiles(world.state_dir).write(NOBODY, "r0", b"{}")

    world.start()

    assert world.leftovers() == []


def test_a_file_of_another_driver_stays(world):
    theirs = world.cdi_dir / "vendor.json"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("{}")

    world.start()

    assert theirs.exists()


@pytest.mark.parametrize("name", ["default_my.claim", "default_claim", "old"])
def test_a_folder_of_another_driver_stays_and_stops_no_start(world, name):
    """The helper of other drivers names the folders of its metadata files by namespace and name."""
    theirs = world.state_dir / "dra-device-metadata" / name / "request" / "metadata.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")

    world.start()

    assert theirs.exists()


def test_files_of_a_claim_that_somebody_is_preparing_stay(world):
    CdiFiles(world.cdi_dir).write(NOBODY, {})
    with hold(world.node.locks.claim_lock(NOBODY), 0, "claim"):
        world.start()
        kept = CdiFiles(world.cdi_dir).list_ours()

    world.start()
    assert (kept, world.leftovers()) == ((NOBODY,), [])


def test_a_half_done_claim_in_somebodys_hands_is_left_to_him(world, ref):
    record = world.record(ref)
    with hold(world.node.locks.claim_lock(ref.uid), 0, "claim"):
        world.reset(0)
        world.start()
        between = world.record(ref)

    assert between == record
    world.start()
    assert world.record(ref).state is ClaimState.PREPARING


# Prepare waits for the recovery of its own GPUs only


def test_prepare_waits_for_its_gpu():
    gate, done = RecoveryGate(), threading.Event()
    gate.close("GPU-1", done)

    with pytest.raises(TryAgain, match="claims of GPU GPU-1 are still being recovered"):
        gate.wait(["GPU-1"], Deadline.after(0))


def test_prepare_does_not_wait_for_another():
    gate = RecoveryGate()
    gate.close("GPU-1", threading.Event())

    gate.wait(["GPU-2"], Deadline.after(0))


def test_a_gpu_opens_when_its_claims_are_done():
    gate, done = RecoveryGate(), threading.Event()
    gate.close("GPU-1", done)
    done.set()

    gate.wait(["GPU-1"], Deadline.after(0))


# NVSwitch fabric


@pytest.fixture
def fabric(build):
    """An H100 behind NVSwitches whose fabric is not up yet."""
    world = build("h100-80gb:fabric")
    world.machine.set_fabric("0", FabricInfo(cluster_uuid="", clique_id=0, state=codes.FABRIC_IN_PROGRESS))
    return world


def test_a_whole_gpu_is_refused_while_its_fabric_is_not_up(fabric):
    assert "the NVSwitch fabric of GPU" in fabric.refuse(fabric.claim("a", "gpu-0"))


def test_a_partition_needs_no_fabric(fabric):
    fabric.serve(fabric.claim("a", fabric.partition(0, "1g.10gb", 0)))


def test_a_whole_gpu_waits_for_its_fabric(fabric):
    up = FabricInfo(cluster_uuid="c", clique_id=1, state=codes.FABRIC_COMPLETED)
    asked = []

    def join_at_the_second_look(name, phase):
        if (name, phase) == ("get_fabric_info", "before"):
            asked.append(name)
            if len(asked) == 2:
                fabric.machine.set_fabric("0", up)

    fabric.start(fabric_wait_s=DEADLINE_S)
    fabric.machine.on_call.append(join_at_the_second_look)

    fabric.serve(fabric.claim("a", "gpu-0"))


def test_waiting_for_fabric_keeps_nobody_from_the_gpu(fabric):
    """The lock of the GPU is free meanwhile."""
    free = []
    fabric.machine.on_call.append(
        lambda name, phase: free.append(_is_free(fabric)) if (name, phase) == ("get_fabric_info", "after") else None
    )

    fabric.refuse(fabric.claim("a", "gpu-0"))

    assert free == [True]


def _is_free(world):
    lock = world.node.locks.gpu_lock(world.uuid(0))
    taken = lock.acquire(0)
    lock.release()
    return taken
