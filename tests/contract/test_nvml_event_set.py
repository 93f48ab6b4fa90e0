"""Event sets and threads: waits in slices, closing below a waiter, and a wait that does not return."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from contract.nvml_watched import LIMIT_S
from polling import until
from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.edge.nvml import codes
from tesela.edge.nvml.event_set import SLICE_S, OpenEventSets, SlicedEventSet
from tesela.edge.nvml.port import NvmlEvent
from tesela.edge.simulator.faults import Hang

EVENT = NvmlEvent(gpu_uuid="GPU-a", event_type=codes.EVENT_XID, data=79, gi_id=None, ci_id=None)
GPUS = "h100-80gb*2"
SOON_S = 20.0


class Backend:
    """One slice of a wait at a time, as a test wants it; notes what was freed."""

    def __init__(self, *, stuck: bool = False, early: bool = False) -> None:
        self.slices: list[float] = []
        self.freed: list[str] = []
        self.event: NvmlEvent | None = None
        self._early = early
        self._go_on = threading.Event()
        if not stuck:
            self._go_on.set()

    def wait_slice(self, timeout_s: float) -> NvmlEvent | None:
        self.slices.append(timeout_s)
        self._go_on.wait(SOON_S)
        if self.event is None and not self._early:
            threading.Event().wait(timeout_s)
        return self.event

    def free(self) -> None:
        self.freed.append(threading.current_thread().name)

    def go_on(self) -> None:
        self._go_on.set()


def wait_in_thread(events) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(events.wait(60)), name="waiter")
    thread.start()
    return thread, outcome


def test_a_long_wait_is_made_of_slices():
    slices: list[float] = []  # and no time passes but in them
    events = SlicedEventSet(slices.append, lambda: None, clock=lambda: sum(slices))
    events.wait(SLICE_S + 0.1)
    assert slices == [SLICE_S, pytest.approx(0.1)]


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_a_wait_without_time_looks_once(timeout_s):
    backend = Backend()
    SlicedEventSet(backend.wait_slice, backend.free).wait(timeout_s)
    assert backend.slices == [0]


def test_an_event_ends_the_wait():
    backend = Backend()
    backend.event = EVENT
    assert (SlicedEventSet(backend.wait_slice, backend.free).wait(60), len(backend.slices)) == (EVENT, 1)


def test_nvml_that_returns_early_is_not_asked_in_a_busy_loop():
    backend = Backend(early=True)
    SlicedEventSet(backend.wait_slice, backend.free).wait(0.3)
    assert len(backend.slices) <= 8


def test_a_set_is_freed_once():
    backend = Backend()
    events = SlicedEventSet(backend.wait_slice, backend.free)
    events.close()
    events.close()
    assert len(backend.freed) == 1


def test_nothing_is_freed_below_a_waiter():
    backend = Backend(stuck=True)
    events = SlicedEventSet(backend.wait_slice, backend.free, close_timeout_s=0.1)
    thread, _ = wait_in_thread(events)
    assert until(lambda: backend.slices)
    with pytest.raises(NvmlTimeout, match=r"nvmlEventSetFree: .* nvmlEventSetWait_v2 has not returned"):
        events.close()
    before = list(backend.freed)
    backend.go_on()
    thread.join(SOON_S)
    assert (before, backend.freed) == ([], ["waiter"])


def test_the_other_sets_are_closed_where_one_is_stuck():
    stuck, idle, sets = Backend(stuck=True), Backend(), OpenEventSets(close_timeout_s=0.1)
    thread, _ = wait_in_thread(sets.open(stuck.wait_slice, stuck.free))
    sets.open(idle.wait_slice, idle.free)
    assert until(lambda: stuck.slices)
    with pytest.raises(NvmlTimeout):
        sets.close_all()
    stuck.go_on()
    thread.join(SOON_S)
    assert len(idle.freed) == 1


def test_all_stuck_sets_together_have_the_time_of_one():
    stuck, sets = [Backend(stuck=True) for _ in range(20)], OpenEventSets(close_timeout_s=0.2)
    threads = [wait_in_thread(sets.open(backend.wait_slice, backend.free))[0] for backend in stuck]
    assert until(lambda: all(backend.slices for backend in stuck))
    began_s = time.monotonic()
    with pytest.raises(NvmlTimeout):
        sets.close_all()
    took_s = time.monotonic() - began_s
    for backend in stuck:
        backend.go_on()
    for thread in threads:
        thread.join(SOON_S)
    assert took_s < 2


def test_a_set_whose_wait_ends_is_freed_though_another_took_all_the_time():
    stuck, waited_for, sets = Backend(stuck=True), Backend(), OpenEventSets(close_timeout_s=2 * SLICE_S)
    threads = [wait_in_thread(sets.open(backend.wait_slice, backend.free))[0] for backend in (stuck, waited_for)]
    assert until(lambda: stuck.slices and waited_for.slices)
    with pytest.raises(NvmlTimeout):
        sets.close_all()
    freed = list(waited_for.freed)
    stuck.go_on()
    for thread in threads:
        thread.join(SOON_S)
    assert len(freed) == 1


def test_a_set_that_nvml_refuses_to_free_does_not_stop_the_shutdown(caplog):
    def refuse() -> None:
        raise NvmlError(codes.UNKNOWN, "nvmlEventSetFree")

    sets = OpenEventSets()
    sets.open(Backend().wait_slice, refuse)
    with caplog.at_level(logging.WARNING):
        sets.close_all()
    assert "an event set was not freed: nvmlEventSetFree" in caplog.text


# Under the watchdog


@pytest.fixture
def events(nvml):
    return nvml.open_event_set([(nvml.get_uuid(index), codes.EVENT_XID) for index in (0, 1)])


def test_a_wait_may_be_longer_than_the_watchdogs_limit(machine, nvml, events):
    thread, outcome = wait_in_thread(events)
    assert machine.events.wait_for_waiters(1, SOON_S)
    assert not until(lambda: not thread.is_alive(), LIMIT_S + 0.2)
    machine.raise_xid("0", 94)
    thread.join(SOON_S)
    assert [event.data for event in outcome] == [94]


def test_a_wait_that_does_not_return_is_bounded(machine, nvml, events):
    machine.inject(Hang(function="nvmlEventSetWait_v2"))
    began_s = time.monotonic()
    with pytest.raises(NvmlTimeout, match=r"nvmlEventSetWait_v2 on the event set: did not return within 0\.5 s"):
        events.wait(0.1)
    assert time.monotonic() - began_s < SOON_S


def test_a_stuck_wait_wedges_nothing_but_its_set(machine, nvml, events):
    machine.inject(Hang(function="nvmlEventSetWait_v2"))
    with pytest.raises(NvmlTimeout):
        events.wait(0.1)
    name = nvml.get_name(nvml.get_uuid(0))
    assert (nvml.wedged_gpus(), nvml.wedged_node, name) == (frozenset(), False, "NVIDIA H100 80GB HBM3")


def test_a_set_goes_on_once_its_stuck_wait_has_returned(machine, nvml, events):
    machine.inject(Hang(function="nvmlEventSetWait_v2"))
    with pytest.raises(NvmlTimeout):
        events.wait(0.1)
    machine.release()
    assert until(lambda: events._worker.overdue is None)
    machine.raise_xid("0", 94)
    assert events.wait(SOON_S).data == 94


def test_a_registration_that_hangs_is_held_against_its_gpu(machine, nvml):
    gpu = nvml.get_uuid(1)
    machine.inject(Hang(function="nvmlDeviceRegisterEvents", gpu=gpu))
    with pytest.raises(NvmlTimeout, match=f"nvmlDeviceRegisterEvents on GPU {gpu}"):
        nvml.open_event_set([(gpu, codes.EVENT_XID)])
    assert nvml.wedged_gpus() == {gpu}


def test_no_thread_of_a_set_is_left(nvml, events):
    nvml.shutdown()
    assert until(lambda: not events._worker._thread.is_alive())
