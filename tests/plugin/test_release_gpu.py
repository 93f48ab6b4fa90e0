"""NVML closed for an operator's work, and opened again: the part of the node program that does it, by itself."""

from __future__ import annotations

import pytest
from polling import until
from release_desk import ASKED, NODE, Desk, running, turns_away
from tesela.core.errors import NvmlReleased, NvmlTimeout, StateError
from tesela.core.released import Source, render_sentence
from tesela.edge.embedded.faults import FlakyKube, unavailable
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang
from tesela.edge.store.released import ReleasedStore
from tesela.plugin.release_gpu import ReleaseFiles


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


# Closing and opening


def test_who_asks_gets_nvml_closed(desk):
    with running(desk):
        desk.ask()

        assert desk.closes()


def test_the_mark_tells_whether_nvml_is_open(desk):
    with running(desk):
        before = desk.mark.is_held()
        desk.ask()
        desk.closes()

        assert (before, desk.mark.is_held()) == (True, False)


def test_the_parts_pause_before_it(desk):
    with running(desk):
        desk.ask()
        desk.closes()

        assert desk.part.paused


def test_the_file_says_which_process_has_closed_it(desk):
    with running(desk):
        desk.ask()
        desk.closes()

        assert desk.said().closed_by.startswith("process ")


def test_who_withdraws_gets_it_opened(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.withdraw()

        assert desk.opens()


def test_the_parts_go_on_after_it(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.withdraw()
        desk.opens()

        assert until(lambda: (desk.part.paused, desk.opened) == (False, 1))


def test_the_taints_are_written_anew_each_time(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.withdraw()
        desk.opens()

        assert until(lambda: desk.told == ["NVML is released", "NVML is open again"])


def test_that_it_is_closed_is_written_once_a_full_disk_has_space(desk):
    with running(desk):
        desk.disk_is_full = True
        desk.ask()
        until(lambda: desk.has_met_the_full_disk)
        desk.disk_is_full = False

        assert desk.closes()


def test_a_disk_that_is_full_when_it_is_opened_keeps_no_taint_and_no_file(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.disk_is_full = True
        desk.withdraw()
        told = until(lambda: "NVML is open again" in desk.told)
        desk.disk_is_full = False

        assert (told, desk.opens()) == (True, True)


def test_a_process_begins_beside_a_request_that_a_full_disk_leaves_unanswered(desk):
    desk.ask()
    desk.disk_is_full = True

    assert not desk.begin()


def test_it_may_be_asked_for_again_and_again(desk):
    with running(desk):
        rounds = []
        for _ in range(3):
            desk.ask()
            rounds.append(desk.closes())
            desk.withdraw()
            rounds.append(desk.opens())

        assert all(rounds)


def test_a_request_withdrawn_before_it_was_heard_leaves_nothing(desk):
    desk.ask()
    desk.withdraw()

    assert not desk.store.path.exists()


# What is in the way


def test_a_claim_under_way_is_waited_for(desk):
    with running(desk) as release:
        with release.work():
            desk.ask()
            named = desk.notes("calls of the kubelet are still under way")
            before = desk.is_closed

        assert (named, before, desk.closes()) == (True, False, True)


def test_a_part_that_does_not_pause_is_named_and_waited_for(desk):
    desk.part.stuck = True
    with running(desk):
        desk.ask()
        named = desk.notes("a look is still inside NVML")
        desk.part.stuck = False

        assert (named, desk.closes()) == (True, True)


def test_a_call_that_hangs_is_named_and_waited_for(desk):
    with running(desk):
        gpu = desk.nvml.get_uuid(0)
        desk.machine.inject(Hang(function="get_name", gpu=gpu))
        with pytest.raises(NvmlTimeout):
            desk.nvml.get_name(gpu)
        desk.ask()
        named = desk.notes(f"a call on {gpu} is still inside NVML")
        desk.machine.release()

        assert (named, desk.closes()) == (True, True)


def test_a_request_withdrawn_while_something_is_in_the_way_opens_everything_again(desk):
    desk.part.stuck = True
    with running(desk) as release:
        desk.ask()
        desk.notes("a look")
        desk.withdraw()

        assert until(lambda: not turns_away(release) and desk.nvml.get_device_count() == 2)


def test_a_driver_that_is_not_back_yet_is_waited_for(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.machine.inject(Fault(function="init", code=codes.DRIVER_NOT_LOADED, times=None))
        desk.withdraw()
        named = desk.notes("cannot be opened again yet")
        desk.machine.release()

        assert (named, desk.opens()) == (True, True)


def test_one_that_opens_nvml_too_late_closes_it_again_for_the_next_request(desk):
    with running(desk) as release:
        desk.ask()
        desk.closes()
        desk.machine.inject(Hang(function="init"))
        desk.withdraw()
        desk.notes("cannot be opened again yet: nvmlInit")
        desk.ask("again")
        until(lambda: release.released.requests[0].reason == "again")
        desk.machine.release()

        assert until(lambda: desk.is_closed and not desk.mark.is_held())


def test_the_mark_stays_while_nvml_may_yet_be_opened(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.machine.inject(Hang(function="init"))
        desk.withdraw()
        desk.notes("cannot be opened again yet: nvmlInit")

        assert desk.mark.is_held()


def test_nvml_that_is_closed_half_is_closed_to_the_end(desk):
    desk.machine.inject(Hang(function="init"))
    with pytest.raises(NvmlTimeout):
        desk.nvml.init()
    desk.machine.release()
    until(lambda: not desk.nvml.wedged_node)
    with running(desk):  # with its second nvmlInit, so that it takes two nvmlShutdown
        desk.machine.inject(Fault(function="shutdown", after=1))
        desk.ask()

        assert until(lambda: not desk.mark.is_held())


def test_what_fails_when_nvml_is_open_again_is_named_and_tried_again(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.after_open_fails = True
        desk.withdraw()
        named = desk.notes("a GPU does not answer")
        desk.after_open_fails = False

        assert (named, desk.opens()) == (True, True)


def test_what_is_asked_for_while_a_process_finds_that_it_has_to_end_is_kept(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.machine.inject(Fault(function="init", code=codes.LIB_RM_VERSION_MISMATCH, times=None))
        desk.inner.before_init = lambda: desk.ask("again")
        desk.withdraw()
        until(lambda: desk.failures)

    assert [one.reason for one in desk.said().requests] == ["again"]


# What is told


def test_who_needs_nvml_is_told_who_released_it_why_and_what_ends_it(desk):
    with running(desk) as release:
        desk.ask("driver 590")
        desk.closes()

        with pytest.raises(
            NvmlReleased,
            match=r"by alex \(driver 590\); `tesela release-gpu --resume` on this node ends that",
        ):
            release.work().__enter__()


def test_what_a_label_released_names_the_label(desk):
    desk.label("true")
    desk.files.follow_label()

    assert f"`kubectl label node {NODE} gpu.nvidia.com/release-gpu-` ends that" in render_sentence(desk.said(), NODE)


def test_work_that_has_not_begun_is_refused(desk):
    with running(desk) as release:
        desk.ask()
        desk.closes()

        with pytest.raises(NvmlReleased), release.work():
            raise AssertionError("it began")


# The label of the node


def test_the_node_s_label_asks_for_it(desk):
    with running(desk):
        desk.label("true")

        assert desk.closes()


@pytest.mark.parametrize("value", [None, "false"])
def test_without_the_label_it_is_opened_again(desk, value):
    with running(desk):
        desk.label("true")
        desk.closes()
        desk.label(value)

        assert desk.opens()


def test_the_command_does_not_withdraw_what_the_label_asks_for(desk):
    desk.label("true")
    desk.files.follow_label()
    desk.ask()
    desk.withdraw()

    assert [one.source for one in desk.said().requests] == [Source.LABEL]


def test_the_file_is_followed_while_the_api_server_is_away(desk):
    desk.files = ReleaseFiles(desk.store, desk.locks, FlakyKube(desk.kube, unavailable(100_000)), NODE)
    with running(desk):
        desk.ask()

        assert desk.closes()


def test_what_the_label_asked_for_holds_while_the_api_server_is_away(desk):
    desk.label("true")
    desk.files.follow_label()
    desk.files = ReleaseFiles(desk.store, desk.locks, FlakyKube(desk.kube, unavailable(100_000)), NODE)

    assert not desk.begin()


# The file


@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff", b'{"version": 1}'])
def test_a_damaged_file_is_set_aside_and_changes_nothing(desk, content):
    desk.store.path.write_bytes(content)

    assert desk.begin()
    assert (desk.store.path.exists(), len(list((desk.state_dir / "aside").iterdir()))) == (False, 1)


class MendedBehind(ReleasedStore):
    """The command replaces the damaged file as soon as the driver has read it."""

    def read(self):
        try:
            return super().read()
        except StateError:
            self.write(ASKED)
            raise


def test_what_the_command_asked_while_a_damaged_file_was_read_is_kept(desk):
    files = ReleaseFiles(MendedBehind(desk.state_dir), desk.locks, desk.kube, NODE)
    desk.store.path.write_bytes(b"{")

    assert (files.read(), desk.said()) == (ASKED, ASKED)


def test_damage_while_nvml_is_released_does_not_open_it(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.store.path.write_bytes(b"{")

        assert until(lambda: desk.store.path.read_bytes() != b"{")
        assert (desk.said().is_wanted, desk.is_closed) == (True, True)


def test_a_file_of_another_release_asks_for_the_same(desk):
    desk.store.path.write_bytes(b'{"version": 3, "released": {"why": "unknown"}}')

    assert not desk.begin()
