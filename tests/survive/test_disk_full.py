"""The disk is full from one write on, whichever it is: a clear error, nothing lost, and all is well with space again.

A disk that is full takes no new file and no byte, and lets files go.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from node_world import Ports, make_world
from tesela.core.errors import TryAgain
from tesela.core.health.observations import XidSeen
from tesela.core.model import Refusal
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault
from tesela.edge.store.files import explain
from tesela.edge.store.health import HealthStore

SLICING = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
PARAMETERS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": SLICING}
TIME_SLICE = ({"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": PARAMETERS}},)
WRITES = {
    "records.write",
    "records.set_aside",
    "cdi.write",
    "metadata.write",
    "rosters.write_roster",
    "rosters.set_aside",
}


class Disk:
    """Counts writes; from number `full_from` on each fails as a full disk fails it, until there is space again."""

    def __init__(self) -> None:
        self.full_from: int | None = None
        self.read_only = False
        self.writes = 0

    def fill(self, number: int) -> None:
        self.full_from, self.writes = number, 0

    def make_space(self) -> None:
        self.full_from = None

    def take(self, what: str) -> None:
        number, self.writes = self.writes, self.writes + 1
        if self.full_from is not None and number >= self.full_from:
            raise explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), f"cannot write {what}")

    def wrap(self, ports: Ports) -> Ports:
        names = {name.partition(".")[0] for name in WRITES}
        stores = {name: _OnDisk(getattr(ports, name), name, self) for name in names}
        return dataclasses.replace(ports, **stores, locks=_LocksOnDisk(ports.locks, self))


class _OnDisk:
    def __init__(self, inner: Any, port: str, disk: Disk) -> None:
        self._inner, self._port, self._disk = inner, port, disk

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name == "mark_unpreparing" and self._disk.read_only:
            return self._refuse
        if f"{self._port}.{name}" not in WRITES:
            return value

        def write(*args: Any, **kwargs: Any) -> Any:
            self._disk.take(f"{self._port} file")
            return value(*args, **kwargs)

        return write

    def _refuse(self, uid: str) -> None:
        raise explain(OSError(errno.EROFS, os.strerror(errno.EROFS)), f"cannot mark {uid}")


class _LocksOnDisk:
    """A lock that has no file yet needs one."""

    def __init__(self, inner: Any, disk: Disk) -> None:
        self._inner, self._disk = inner, disk

    def __getattr__(self, name: str) -> Any:
        make = getattr(self._inner, name)
        if not name.endswith("_lock"):
            return make

        def lock(*args: Any) -> Any:
            made = make(*args)
            if not made.path.exists():
                self._disk.take(str(made.path))
            return made

        return lock


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def world(tmp_path, disk):
    world = make_world(tmp_path, "a100-40gb:mig,h100-80gb", wrap=disk.wrap)
    world.install_smi()
    return world


def partition(world, name):
    return world.claim(name, world.partition(0, "1g.5gb", 6))


def two_partitions(world, name):
    return world.claim(name, world.partition(0, "3g.20gb", 4), world.partition(1, "1g.10gb", 0))


def whole_with_a_time_slice(world, name):
    return world.claim(name, "gpu-1", configs=TIME_SLICE)


CLAIMS = [partition, two_partitions, whole_with_a_time_slice]


def nothing(world, ref):
    """It was never asked for."""


def served(world, ref):
    world.serve(ref)


def lost(world, ref):
    world.serve(ref)
    for number in (0, 1):
        world.reset(number)


def damaged(world, ref):
    world.serve(ref)
    world.record_path(ref).write_text("{")


def forget(world, ref):
    world.unprepare(ref)
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.lost_gpus.clear()


def prepare(world, ref):
    answer = world.prepare(ref)
    return answer.message if isinstance(answer, Refusal) else ""


def unprepare(world, ref):
    return world.unprepare(ref) or ""


def act_on_a_full_disk(world, disk, make, before, act):
    """Runs `act` with the disk full from its first write on, from its second..., until it fits; what it said each time.

    Each time the kubelet goes on when there is space again: it gets what it asked for, and all of it ends.
    """
    for number in itertools.count():
        ref = make(world, f"c{number}")
        before(world, ref)
        disk.fill(number)
        yield (said := act(world, ref))
        enough = disk.writes <= number
        disk.make_space()
        world.start()
        world.check()
        assert (act(world, ref), unprepare(world, ref), world.leftovers()) == ("", "", []), (
            f"full from {number}: {said}"
        )
        world.check()
        forget(world, ref)
        if enough:
            return


@pytest.mark.parametrize("before", [nothing, served, lost, damaged])
@pytest.mark.parametrize("make", CLAIMS)
def test_a_claim_is_prepared_once_there_is_space(world, disk, make, before):
    said = list(act_on_a_full_disk(world, disk, make, before, prepare))

    assert {sentence == "" or "No space left on device: free space" in sentence for sentence in said} == {True}


@pytest.mark.parametrize("before", [nothing, served, lost, damaged])
@pytest.mark.parametrize("make", CLAIMS)
def test_a_claim_ends_once_there_is_space(world, disk, make, before):
    said = list(act_on_a_full_disk(world, disk, make, before, unprepare))

    assert {sentence == "" or "No space left on device: free space" in sentence for sentence in said} == {True}


@pytest.mark.parametrize("make", CLAIMS)
def test_a_claim_ends_while_the_disk_is_full(world, disk, make):
    """What is given back takes no space, and removing files needs none."""
    ref = make(world, "a")
    world.serve(ref)
    disk.fill(0)

    assert (unprepare(world, ref), world.leftovers()) == ("", [])


def half_end(world, disk):
    """A claim whose GPU instance could not be destroyed after its compute instance, the disk being full."""
    ref = partition(world, "a")
    world.serve(ref)
    disk.fill(0)
    world.machine.inject(Fault(function="destroy_gpu_instance", code=codes.UNKNOWN))
    assert "cannot be given back" in unprepare(world, ref)
    return ref


def test_a_claim_whose_end_was_interrupted_ends_while_the_disk_is_full(world, disk):
    ref = half_end(world, disk)

    assert (unprepare(world, ref), world.leftovers()) == ("", [])


def test_a_start_ends_a_claim_whose_end_was_interrupted_while_the_disk_is_full(world, disk):
    half_end(world, disk)

    world.start()

    assert world.leftovers() == []


def test_a_claim_whose_end_cannot_be_noted_either_is_left_as_it_is(world, disk):
    """As on a file system that has become read-only: the error is that of the write."""
    ref = partition(world, "a")
    before = world.serve(ref)
    disk.fill(0)
    disk.read_only = True

    said = unprepare(world, ref)

    assert ("No space left on device: free space" in said, world.record(ref)) == (True, before)
    assert len(world.instances(0)) == 1


@pytest.mark.parametrize("make", CLAIMS)
def test_every_kind_of_write_of_a_prepare_is_met(world, disk, make):
    """Else the tests above would try less than they say."""
    disk.fill(100)

    world.serve(make(world, "a"))

    assert disk.writes >= 3


def test_a_start_on_a_full_disk_keeps_what_was_prepared(world, disk):
    ref = partition(world, "a")
    world.serve(ref)
    disk.fill(0)
    world.start()
    disk.make_space()

    assert (unprepare(world, ref), world.leftovers()) == ("", [])


def test_a_look_on_a_full_disk_is_repeated(world, disk):
    """The GPU that went is noticed, once that can be written down."""
    world.machine.lose("1", absent=True)
    disk.fill(0)
    with pytest.raises(TryAgain, match="No space left on device"):
        world.node.lookout.refresh()
    disk.make_space()
    world.node.lookout.refresh()

    assert [known.present for known in world.node.lookout.roster.gpus] == [True, False]


def fill_for_health(world) -> Path:
    """The temporary name of health.json is a folder's: nothing can be written there."""
    temporary = world.state_dir / ".health.json.tmp"
    temporary.mkdir()
    return temporary


def test_a_fault_is_fenced_though_it_cannot_be_written_down(world):
    fill_for_health(world)
    world.node.health.observe(XidSeen(gpu_uuid=world.uuid(0), xid=79))

    assert world.uuid(0) in {fence.gpu_uuid for fence in world.node.health.fences()}


def test_a_fault_is_written_down_once_that_can_be(world):
    temporary = fill_for_health(world)
    world.node.health.observe(XidSeen(gpu_uuid=world.uuid(0), xid=79))
    temporary.rmdir()
    world.node.health.observe()

    assert [finding.signal for finding in HealthStore(world.state_dir).read_health().findings] == ["xid-79"]
