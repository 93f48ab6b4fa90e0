"""A process that begins: whether it opens NVML, and whether its mark tells so."""

from __future__ import annotations

import threading

import pytest
from polling import until
from release_desk import NODE, Desk, running, turns_away
from tesela.core.errors import NvmlError, NvmlTimeout, StartError
from tesela.edge.kube.port import NODES
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang
from tesela.plugin.driver_wait import init_nvml


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_a_process_begins_with_nvml_where_nobody_asks(desk):
    assert desk.begin()


def test_its_mark_tells_so_before_it_serves_anybody(desk):
    desk.begin()

    assert desk.mark.is_held()


def test_one_that_waits_for_the_gpu_driver_has_no_mark(desk):
    desk.machine.inject(Fault(function="init", code=codes.DRIVER_NOT_LOADED))

    with pytest.raises(NvmlError):
        desk.begin()

    assert not desk.mark.is_held()


def test_what_is_asked_for_while_it_waits_for_the_gpu_driver_is_heard(desk):
    desk.machine.inject(Fault(function="init", code=codes.DRIVER_NOT_LOADED))
    with pytest.raises(NvmlError):
        desk.begin()
    desk.ask()

    assert not desk.begin()


def begin_late(desk):
    """One try whose nvmlInit does not return in time."""
    desk.machine.inject(Hang(function="init"))
    with pytest.raises(NvmlTimeout):
        desk.begin()


def return_late(desk):
    desk.machine.release()
    assert until(lambda: not desk.nvml.wedged_node)


def test_one_whose_nvml_may_open_too_late_has_the_mark(desk):
    begin_late(desk)

    assert desk.mark.is_held()


def test_nvml_that_opened_too_late_is_closed_for_a_request(desk):
    begin_late(desk)
    desk.ask()
    return_late(desk)

    assert (desk.begin(), desk.is_closed, desk.mark.is_held()) == (False, True, False)


def test_a_process_does_not_begin_without_nvml_that_may_yet_be_opened(desk):
    begin_late(desk)
    desk.ask()

    with pytest.raises(NvmlTimeout, match="still inside NVML"):
        desk.begin()
    assert (desk.mark.is_held(), desk.said().closed_by) == (True, "")


def test_what_is_withdrawn_while_nvml_may_yet_be_opened_is_heard(desk):
    begin_late(desk)
    desk.ask()
    with pytest.raises(NvmlTimeout):
        desk.begin()
    desk.withdraw()
    return_late(desk)

    assert (desk.begin(), desk.nvml.get_device_count()) == (True, 2)


def test_a_request_that_cannot_be_read_now_is_not_taken_for_a_gpu_driver_that_does_not_come(desk):
    desk.store.path.write_bytes(b"{")
    desk.disk_is_full = True

    with pytest.raises(StartError, match=r"^gave up after 0 s: .*No space left on device"):
        init_nvml(desk.begin, wait_s=0, stop=threading.Event())


def test_a_process_that_begins_while_nvml_is_released_has_no_mark(desk):
    desk.ask()
    desk.begin()

    assert not desk.mark.is_held()


def test_a_process_that_begins_while_nvml_is_released_leaves_it_closed(desk):
    desk.ask()

    assert not desk.begin()
    with running(desk, begin_open=False) as release:
        assert (desk.is_closed, turns_away(release), desk.part.paused) == (True, True, True)


def test_it_opens_nvml_when_nobody_asks_any_more(desk):
    desk.ask()
    desk.begin()
    with running(desk, begin_open=False):
        desk.withdraw()

        assert (desk.opens(), until(lambda: desk.opened == 1)) == (True, True)


def test_the_label_is_read_before_nvml_is_opened(desk):
    desk.label("true")

    assert not desk.begin()


def test_a_node_that_is_not_there_asks_for_nothing(desk):
    desk.kube.delete(NODES, NODE)

    assert desk.begin()
