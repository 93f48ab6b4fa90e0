"""The simulator's log of events: order, loss of what is too old, other lives, and waits that end."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela.edge.nvml import codes
from tesela.edge.simulator.events import CAPACITY, MAX_WAIT_S, EventLog, Registration
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.refused import Refused

XID = codes.EVENT_XID
GPU, OTHER = "GPU-a", "GPU-b"


@pytest.fixture
def log():
    return EventLog()


def wants(log: EventLog, *, gpu: str = GPU, mask: int = XID, since: int | None = None) -> Registration:
    return Registration(gpu_uuid=gpu, mask=mask, since=log.cursor if since is None else since)


def read_all(log: EventLog, *registrations: Registration) -> list[int]:
    """The data of everything wanted, as a client reads it: each number moves all registrations on."""
    found, wanted = [], list(registrations)
    while (event := log.wait(wanted, 0)) is not None:
        found.append(event.data)
        wanted = [Registration(gpu_uuid=r.gpu_uuid, mask=r.mask, since=max(r.since, event.number)) for r in wanted]
    return found


EVENTS = st.lists(st.tuples(st.sampled_from([GPU, OTHER]), st.sampled_from([0x1, 0x8, 0x100])), max_size=30)


@given(before=EVENTS, after=EVENTS, mask=st.integers(0, 0x1FF))
@settings(deadline=None)
def test_a_client_reads_what_it_wants_of_what_came_later_once_and_in_order(before, after, mask):
    log = EventLog()
    for gpu, event_type in before:
        log.record(gpu, event_type)
    registration = wants(log, mask=mask)
    for number, (gpu, event_type) in enumerate(after):
        log.record(gpu, event_type, data=number)
    wanted = [number for number, (gpu, event_type) in enumerate(after) if gpu == GPU and event_type & mask]
    assert read_all(log, registration) == wanted


def test_a_client_far_behind_reads_the_last_events(log):
    registration = wants(log)
    for xid in range(CAPACITY + 10):
        log.record(GPU, XID, data=xid)
    assert read_all(log, registration) == list(range(10, CAPACITY + 10))


def test_each_registration_has_its_own_beginning(log):
    early = wants(log)
    log.record(GPU, XID, data=1)
    log.record(OTHER, XID, data=2)
    late = wants(log, gpu=OTHER)
    log.record(OTHER, XID, data=3)
    assert read_all(log, early, late) == [1, 3]


@pytest.mark.parametrize("ahead", [-1, 1, 1 << 32])
def test_a_number_that_this_log_never_gave_out_is_of_another_life(log, ahead):
    with pytest.raises(Refused) as refused:
        log.wait([wants(log, since=log.cursor + ahead)], 0)
    assert refused.value.code == codes.GPU_IS_LOST


def test_two_logs_number_differently():
    assert EventLog().cursor != EventLog().cursor


def test_a_release_ends_a_wait():
    # Or a simulator that stops would have threads behind it for as long as its clients wait.
    machine, began_s = build_machine("a30"), time.monotonic()
    log = machine.events
    waiter = threading.Thread(target=log.wait, args=([wants(log)], 60))
    waiter.start()
    assert log.wait_for_waiters(1, 10)
    machine.release()
    waiter.join()
    assert time.monotonic() - began_s < MAX_WAIT_S


def test_fewer_waiters_than_are_waited_for():
    assert not EventLog().wait_for_waiters(1, 0.01)
