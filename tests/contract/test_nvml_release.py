"""NVML under the watchdog, closed and opened again while the process goes on."""

from __future__ import annotations

import threading

import pytest
from contract.nvml_watched import LIMIT_S
from polling import until
from tesela.core.errors import NvmlError, NvmlReleased, NvmlTimeout
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Fault, Hang

GPUS = "a100-40gb:mig*2"
WHY = "NVML is released for maintenance"


def is_closed(inner):
    try:
        inner.get_device_count()
    except NvmlError as error:
        return error.code == codes.UNINITIALIZED
    return False


def test_a_release_closes_nvml(nvml, inner):
    nvml.release(WHY)

    assert (is_closed(inner), nvml.is_open) == (True, False)


def test_every_call_says_why_meanwhile(nvml):
    nvml.release(WHY)

    with pytest.raises(NvmlReleased, match=WHY):
        nvml.get_device_count()


def test_together_says_why_too(nvml):
    gpu = nvml.get_uuid(0)
    nvml.release(WHY)

    with pytest.raises(NvmlReleased, match=WHY):
        nvml.together(gpu, lambda: nvml.get_name(gpu))


def test_after_it_is_opened_again_calls_go_through(nvml):
    nvml.release(WHY)

    nvml.reopen()

    assert (nvml.get_device_count(), nvml.is_open) == (2, True)


def test_it_may_be_released_more_than_once(nvml, inner):
    for _ in range(3):
        nvml.release(WHY)
        nvml.reopen()
    nvml.release(WHY)

    assert is_closed(inner)


def test_one_that_was_never_opened_stays_closed(inner):
    nvml = WatchedNvml(inner, timeout_s=LIMIT_S)

    nvml.release(WHY)

    with pytest.raises(NvmlReleased):
        nvml.get_device_count()


def test_the_end_of_the_process_finds_nothing_to_shut_down(nvml):
    nvml.release(WHY)

    nvml.shutdown()

    assert not nvml.is_open


def test_an_init_that_came_too_late_is_taken_back_too(machine, inner):
    nvml = WatchedNvml(inner, timeout_s=LIMIT_S)
    machine.inject(Hang(function="init"))
    with pytest.raises(NvmlTimeout):
        nvml.init()
    machine.release()
    assert until(lambda: not nvml.wedged_node, timeout_s=5)
    nvml.init()

    nvml.release(WHY)

    assert is_closed(inner)


def test_a_call_that_hangs_keeps_nvml_open(machine, nvml, inner):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="get_name", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.get_name(gpu)

    with pytest.raises(NvmlTimeout, match=f"a call on {gpu} is still inside NVML"):
        nvml.release(WHY)
    assert not is_closed(inner)


def test_no_further_call_begins_beside_one_that_hangs(machine, nvml):
    gpu, other = nvml.get_uuid(0), nvml.get_uuid(1)
    machine.inject(Hang(function="get_name", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.get_name(gpu)
    with pytest.raises(NvmlTimeout):
        nvml.release(WHY)

    with pytest.raises(NvmlReleased):
        nvml.get_name(other)


def test_a_release_that_is_tried_again_succeeds_once_the_call_returned(machine, nvml, inner):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="get_name", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.get_name(gpu)
    with pytest.raises(NvmlTimeout):
        nvml.release(WHY)
    machine.release()
    assert until(lambda: not nvml.wedged_gpus(), timeout_s=5)

    nvml.release(WHY)

    assert is_closed(inner)


def test_a_wait_for_events_ends(nvml):
    ended = []
    events = nvml.open_event_set([(nvml.get_uuid(0), codes.EVENT_XID)])

    def wait():
        try:
            ended.append(events.wait(30))
        except NvmlError as error:
            ended.append(error.code)

    thread = threading.Thread(target=wait)
    thread.start()
    nvml.release(WHY)
    thread.join(10)

    assert ended in ([None], [codes.UNINITIALIZED])


def test_events_come_again_after_it_is_opened_again(machine, nvml):
    gpu = nvml.get_uuid(0)
    nvml.open_event_set([(gpu, codes.EVENT_XID)])
    nvml.release(WHY)
    nvml.reopen()
    events = nvml.open_event_set([(gpu, codes.EVENT_XID)])

    machine.raise_xid(gpu, 31)

    assert events.wait(5).data == 31


def test_one_that_cannot_be_opened_again_stays_closed(machine, nvml):
    nvml.release(WHY)
    machine.inject(Fault(function="init", code=codes.DRIVER_NOT_LOADED))
    with pytest.raises(NvmlError):
        nvml.reopen()

    with pytest.raises(NvmlReleased):
        nvml.get_device_count()


def test_a_library_that_no_longer_matches_the_module_is_heard_of(machine, nvml):
    heard = []
    nvml.listen_for_mismatch(heard.append)
    machine.inject(Fault(function="get_device_count", code=codes.LIB_RM_VERSION_MISMATCH))

    with pytest.raises(NvmlError):
        nvml.get_device_count()

    assert [error.code for error in heard] == [codes.LIB_RM_VERSION_MISMATCH]


def test_other_failures_are_not_heard_of(machine, nvml):
    heard = []
    nvml.listen_for_mismatch(heard.append)
    machine.inject(Fault(function="get_device_count", code=codes.UNKNOWN))

    with pytest.raises(NvmlError):
        nvml.get_device_count()

    assert heard == []
