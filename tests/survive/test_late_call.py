"""A call into NVML hangs, its locks are freed, and it does its work after all: somebody destroys what it makes."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from node_world import DEADLINE_S
from polling import until
from tesela.core.model import Refusal
from tesela.core.record import ClaimState
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Hang
from tesela.edge.store.sweep import SweepStore
from tesela.plugin.recover import Recovery
from tesela.plugin.sweep import Sweeper

WATCHDOG_S = 1.0
CALLS = ["create_gpu_instance", "create_compute_instance"]


def watch(ports):
    """As in the running program: a watchdog, and marks for the calls that change a GPU."""
    return dataclasses.replace(
        ports, nvml=WatchedNvml(ports.nvml, timeout_s=WATCHDOG_S, mark=ports.locks.call_marks.hold)
    )


class Late:
    """A driver whose prepare has hung in a call and given up, and the successor of a rolling update."""

    def __init__(self, world):
        self.world = world
        self.ended = threading.Event()
        self.successor = world.build()  # its own NVML answers: it asks without the watchdog
        self.successor.lookout.refresh()
        world.wrap = watch
        world.start()
        self.ref = world.claim("a", world.partition(0, "1g.5gb", 0))

    def hang(self, function):
        """The prepare of `ref` fails in `function`, which has not returned."""
        self.world.machine.inject(Hang(function=function, gpu="0"))
        self.world.machine.on_call.append(lambda name, phase: self._note(name, phase, function))
        return self.world.refuse(self.ref)

    def let_it_return(self):
        self.world.machine.release()
        assert self.ended.wait(DEADLINE_S)
        assert until(lambda: not self.world.node.nvml.wedged_gpus(), DEADLINE_S)

    def recover(self):
        """What the successor does at its start."""
        recovery = Recovery(self.successor)
        recovery.start()
        recovery.join(DEADLINE_S)

    def sweep(self):
        """What the successor does every five minutes."""
        Sweeper(self.successor, Recovery(self.successor), SweepStore(self.world.state_dir)).sweep()

    def _note(self, name, phase, function):
        if (name, phase) == (function, "after"):
            self.ended.set()


@pytest.fixture
def late(build):
    late = Late(build("a100-40gb:mig*2"))
    yield late
    late.world.machine.release()
    assert until(lambda: not late.world.node.nvml.wedged_gpus(), DEADLINE_S)


@pytest.mark.parametrize("function", CALLS)
def test_a_late_call_of_a_predecessor_leaves_nothing(late, function):
    late.hang(function)
    late.recover()
    late.world.unprepare(late.ref, late.successor)

    late.let_it_return()

    assert (late.world.unprepare(late.ref, late.successor), late.world.leftovers()) == (None, [])


def test_the_successor_names_the_call_that_it_waits_for(late):
    late.hang("create_gpu_instance")

    said = late.world.unprepare(late.ref, late.successor)

    assert "claim default/a: device gpu-0-mig-" in said
    assert "nvmlDeviceCreateGpuInstanceWithPlacement of process" in said
    assert f"has not returned from GPU {late.world.uuid(0)}" in said


@pytest.mark.parametrize("act", [Late.recover, Late.sweep])
def test_the_record_that_covers_what_a_call_may_make_stays(late, act):
    late.hang("create_gpu_instance")
    before = late.world.record(late.ref)

    act(late)

    assert (before.state, late.world.record(late.ref)) == (ClaimState.PREPARING, before)


@pytest.mark.parametrize("function", CALLS)
def test_a_late_call_of_this_very_process_leaves_nothing(late, function):
    late.hang(function)
    assert late.world.unprepare(late.ref) is not None

    late.let_it_return()

    assert (late.world.unprepare(late.ref), late.world.leftovers()) == (None, [])


def test_a_claim_is_served_by_the_successor_once_the_call_has_returned(late):
    late.hang("create_gpu_instance")
    late.world.refuse(late.ref, late.successor)
    late.let_it_return()

    late.world.serve(late.ref, late.successor)

    late.world.check()


def test_nothing_is_made_on_a_gpu_that_a_call_of_another_process_is_inside(late):
    late.hang("create_gpu_instance")
    other = late.world.claim("b", late.world.partition(0, "3g.20gb", 4))

    assert "has not returned from GPU" in late.world.refuse(other, late.successor)


def test_another_gpu_serves_meanwhile(late):
    late.hang("create_gpu_instance")
    other = late.world.claim("b", late.world.partition(1, "3g.20gb", 4))

    assert not isinstance(late.world.prepare(other, late.successor), Refusal)


def test_a_late_destruction_of_a_predecessor_destroys_no_later_partition(late):
    """The id that it destroys would be given out again."""
    late.world.serve(late.ref)
    late.world.machine.inject(Hang(function="destroy_gpu_instance", gpu="0"))
    assert late.world.unprepare(late.ref) is not None
    later = late.world.claim("b", late.world.partition(0, "1g.5gb", 1))
    late.world.refuse(later, late.successor)

    late.world.machine.release()
    assert until(lambda: not late.world.node.nvml.wedged_gpus(), DEADLINE_S)
    late.world.unprepare(late.ref, late.successor)
    late.world.serve(later, late.successor)

    late.world.check()


def test_a_damaged_record_is_not_rebuilt_while_a_call_is_inside(late):
    late.hang("create_gpu_instance")
    late.world.record_path(late.ref).write_text("{")
    late.world.unprepare(late.ref, late.successor)

    late.let_it_return()

    assert (late.world.unprepare(late.ref, late.successor), late.world.leftovers()) == (None, [])


def test_a_claim_on_a_gpu_that_is_gone_ends_whatever_hangs(late):
    late.hang("create_gpu_instance")
    late.world.machine.lose("0", absent=True)

    assert late.world.unprepare(late.ref, late.successor) is None
