"""What a pass over the GPUs asks, what it makes of the answers, and of GPUs that give none."""

from __future__ import annotations

from collections import Counter

import pytest
from health_fakes import FakeKeeper, FakeLookout, refuse
from health_world import GPU, tell
from polling import until
from tesela.core.health.observations import GpuAnswers, GpuLost, NodeMissing, NodePresent, Reading, XidSeen
from tesela.core.roster import EMPTY_ROSTER, plan_roster
from tesela.edge.host.host import Host
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Fault, Hang
from tesela.edge.simulator.hosttree import HostTree
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.plugin.health.readings import Readings
from tesela.plugin.inventory import discover
from tesela.plugin.partition import Partitions

WATCHDOG_S = 1.0


class Counted:
    """NVML whose calls are counted by method."""

    def __init__(self, inner):
        self._inner, self.calls = inner, Counter()
        self.counts_corrected = True

    def get_total_ecc_errors(self, gpu_uuid, *, uncorrected, aggregate):
        self.calls["get_total_ecc_errors"] += 1
        if not (uncorrected or self.counts_corrected):
            raise refuse(codes.NOT_SUPPORTED)
        return self._inner.get_total_ecc_errors(gpu_uuid, uncorrected=uncorrected, aggregate=aggregate)

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self._inner, name)


class Read:
    """Readings of a simulated machine; `changes` are the reasons to look at it."""

    def __init__(self, folder, gpus):
        self.machine = build_machine(gpus)
        HostTree(folder, self.machine, make_nodes=False)
        self.folder = folder
        self.host = Host(proc_root=folder / "proc", sys_root=folder / "sys", dev_root=folder, dev_root_mount=folder)
        self.admin = SimulatedNvml(self.machine)
        self.admin.init()
        self.counted = Counted(SimulatedNvml(self.machine))
        self.nvml = WatchedNvml(self.counted, timeout_s=WATCHDOG_S)
        self.nvml.init()
        self.keeper, self.lookout, self.changes = FakeKeeper(), FakeLookout(), []
        self.look()
        self.readings = Readings(
            nvml=self.nvml,
            host=self.host,
            lookout=self.lookout,
            keeper=self.keeper,
            on_change=self.changes.append,
            period_s=60.0,
        )

    def look(self):
        """A look at the machine."""
        seen = discover(self.admin, self.host, Partitions(self.admin))
        before = self.lookout.roster if self.lookout.roster.gpus else EMPTY_ROSTER
        self.lookout.roster = plan_roster(before, seen, boot_id="boot-1", module_token="module-1")

    def uuid(self, index=0):
        return self.machine.snapshot().gpus[index].uuid

    def read(self, index=0):
        """The reading of one GPU in a new pass."""
        self.keeper.seen.clear()
        self.readings.read()
        return next((one for one in self.keeper.of(Reading) if one.gpu_uuid == self.uuid(index)), None)

    def calls(self):
        """How often each method is called in one pass."""
        self.counted.calls.clear()
        self.read()
        return self.counted.calls


@pytest.fixture
def read(tmp_path):
    made = []

    def make(gpus="a100-40gb"):
        made.append(Read(tmp_path, gpus))
        return made[-1]

    yield make
    for one in made:
        one.machine.release()
        assert one.readings.stop(10)


def inject(read, function, code, index=0):
    read.machine.inject(Fault(function=function, gpu=read.uuid(index), code=code, times=None))


# What is read


def test_a_healthy_gpu_reads_clear(read):
    world = read("h100-80gb:fabric")

    assert world.read() == Reading(
        gpu_uuid=world.uuid(),
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        ecc_corrected_volatile=0,
        remap_pending=False,
        remap_failure=False,
        recovery_action=0,
        fabric_state=codes.FABRIC_COMPLETED,
    )


def test_the_fabric_of_a_gpu_in_mig_mode_is_not_asked_for(read):
    world = read("h100-80gb:fabric:mig")
    inject(world, "get_fabric_info", codes.UNKNOWN)

    assert world.read().fabric_state == codes.FABRIC_NOT_SUPPORTED


def test_what_is_not_counted_in_mig_mode_is_asked_again_after_it(read):
    world = read("h100-80gb:mig")
    inject(world, "get_total_ecc_errors", codes.NOT_SUPPORTED)
    before = world.read()
    world.machine.release()
    assert world.admin.set_mig_mode(world.uuid(), codes.MIG_DISABLED) == codes.SUCCESS
    world.look()

    assert (before.ecc_uncorrected_volatile, world.read().ecc_uncorrected_volatile) == (None, 0)


def test_errors_are_read_by_kind(read):
    world = read()
    world.machine.change_health("0", lambda health: health.add_errors(1, 3, location=2) or 0)
    world.machine.change_health("0", lambda health: health.add_errors(0, 5, location=2) or 0)

    seen = world.read()

    assert (seen.ecc_uncorrected_volatile, seen.ecc_uncorrected_aggregate, seen.ecc_corrected_volatile) == (3, 3, 5)


def test_rows_are_unknown_while_partitions_live(read):
    """NVML refuses them then: they are neither clear nor an error."""
    world = read("a100-40gb:mig")
    placement = world.admin.get_gpu_instance_possible_placements(world.uuid(), 19)[0]
    world.admin.create_gpu_instance(world.uuid(), 19, placement)

    seen = world.read()

    assert (seen.remap_pending, seen.remap_failure, seen.recovery_action) == (None, None, 0)


def test_counts_are_unknown_while_ecc_is_off(read):
    world = read()
    world.machine.change_health("0", lambda health: health.set_ecc_mode(0) or 0)
    world.machine.reset("0")

    assert (world.read().ecc_uncorrected_volatile, world.calls()["get_total_ecc_errors"]) == (None, 0)


def test_a_pass_asks_few_questions(read):
    world = read("a100-40gb*2")
    world.read()

    assert world.calls() == {"get_minor_number": 2, "get_field_values": 2, "get_total_ecc_errors": 6}


def test_what_a_gpu_lacks_is_asked_once(read):
    world = read()
    inject(world, "get_total_ecc_errors", codes.NOT_SUPPORTED)
    world.read()

    assert world.calls()["get_total_ecc_errors"] == 0


def test_a_kind_of_error_that_a_gpu_does_not_count_hides_no_other(read):
    world = read()
    world.counted.counts_corrected = False
    world.read()

    seen = world.read()

    assert (seen.ecc_corrected_volatile, seen.ecc_uncorrected_volatile) == (None, 0)


def test_what_a_gpu_lacks_is_asked_again_once_nvml_was_opened_again(read):
    world = read()
    inject(world, "get_total_ecc_errors", codes.NOT_SUPPORTED)
    world.read()
    world.machine.release()
    assert world.readings.pause(10)

    world.readings.resume()

    assert world.read().ecc_uncorrected_volatile == 0


def test_one_answer_that_fails_leaves_the_others(read):
    world = read()
    inject(world, "get_field_values", codes.UNKNOWN)

    seen = world.read()

    assert (seen.recovery_action, seen.ecc_uncorrected_volatile) == (None, 0)


# Device nodes


def test_a_device_node_that_is_there_is_told(read):
    world = read()

    world.read()

    assert world.keeper.of(NodePresent) == [NodePresent(gpu_uuid=world.uuid())]


def test_a_device_node_that_is_missing_is_told_by_its_path(read):
    world = read("a100-40gb*2")
    (world.folder / "dev/nvidia1").unlink()

    world.read()

    assert world.keeper.of(NodeMissing) == [NodeMissing(gpu_uuid=world.uuid(1), path="/dev/nvidia1")]


# GPUs that do not answer


def test_a_gpu_that_answers_says_so(read):
    world = read()

    world.read()

    assert world.keeper.of(GpuAnswers) == [GpuAnswers(gpu_uuid=world.uuid())]


def test_a_pass_says_what_stood_when_it_began(read):
    """It lasts as long as its slowest GPU, and must not take back what an event tells meanwhile."""
    read = read("a100-40gb")
    read.keeper.health = stood = tell(XidSeen(gpu_uuid=GPU, xid=79))

    read.readings.read()

    assert read.keeper.since is stood


def test_a_lost_gpu_is_told_and_the_others_are_read(read):
    world = read("a100-40gb*2")
    world.machine.lose("0")

    assert world.read(1) is not None
    assert world.keeper.of(GpuLost) == [GpuLost(gpu_uuid=world.uuid(0))]


def test_a_lost_gpu_asks_once_for_a_look_at_the_machine(read):
    world = read()
    world.machine.lose("0")

    world.read()
    world.read()

    assert world.changes == [f"GPU {world.uuid()} is lost"]


def test_a_gpu_that_is_not_listed_any_more_is_for_the_look_to_tell(read):
    world = read("a100-40gb*2")
    uuid = world.uuid(0)
    world.machine.lose("0", absent=True)

    world.read(1)

    assert (world.keeper.of(GpuLost), world.changes) == ([], [f"GPU {uuid} is lost"])


def test_a_gpu_that_is_back_asks_for_a_look_at_the_machine(read):
    world = read("a100-40gb*2")
    world.machine.lose("0")
    world.look()
    world.machine.reset("0")

    world.read(1)

    assert world.changes == [f"GPU {world.uuid(0)} is back"]


def test_a_gpu_that_hangs_holds_up_no_other(read):
    world = read("a100-40gb*2")
    world.machine.inject(Hang(function="get_field_values", gpu=world.uuid(0)))

    assert world.read(1) is not None
    assert world.nvml.wedged_gpus() == {world.uuid(0)}


def test_a_gpu_that_hangs_is_told_neither_lost_nor_answering(read):
    world = read()
    world.machine.inject(Hang(function="get_field_values", gpu=world.uuid(0)))

    world.read()

    assert world.keeper.seen == []


def test_a_gpu_that_cannot_be_read_is_said_once(read, caplog):
    world = read()
    world.machine.inject(Fault(function="get_minor_number", code=codes.UNKNOWN, times=None))

    for _ in range(3):
        world.read()

    said = [record.levelname for record in caplog.records if record.name == "tesela.plugin.health.readings"]
    assert said == ["WARNING"]


# The thread


def test_a_wake_brings_a_pass_soon(read):
    world = read()
    world.readings.start()

    world.readings.wake()

    assert until(lambda: world.keeper.of(Reading))


def test_a_pause_waits_for_a_call_that_hangs_no_longer_than_its_bound(read):
    world = read()
    world.machine.inject(Hang(function="get_field_values"))
    world.readings.start()
    world.readings.wake()
    world.machine.wait_for_hung_calls(1, timeout_s=5)

    assert not world.readings.pause(0.01)
