"""The file by which an operator and the driver talk about NVML, and the mark of a process that has it open."""

from __future__ import annotations

import errno
import os
import stat
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.cli.nvml_beside import open_beside
from tesela.core.errors import NvmlTimeout, TryAgain
from tesela.core.released import NOT_RELEASED, Released, Request, Source
from tesela.edge.documents.released import decode_released, encode_released
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Hang
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.released import OpenMark, ReleasedStore

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
requests = st.builds(
    Request, source=st.sampled_from(Source), reason=texts, requested_by=texts, since_s=st.integers(0, 2**40)
)


@given(st.builds(Released, requests=st.lists(requests, max_size=3).map(tuple), closed_by=texts, problem=texts))
def test_the_file_survives_whatever_it_may_hold(released):
    assert decode_released(encode_released(released)) == released


@given(st.lists(requests, min_size=1, max_size=4), st.sampled_from(Source))
def test_the_last_request_that_is_withdrawn_leaves_something_to_wait_for(asked, source):
    released = NOT_RELEASED
    for one in asked:
        released = released.with_request(one)

    left = released.without_until_open(source)

    assert (left.requests, left == NOT_RELEASED) == (released.without(source).requests, False)


@given(st.lists(requests, max_size=4))
def test_whatever_was_asked_for_is_withdrawn_by_withdrawing_each(asked):
    released = NOT_RELEASED
    for one in asked:
        released = released.with_request(one)
    for source in Source:
        released = released.without(source)

    assert released == NOT_RELEASED


# A full disk, which takes no file and lets files go


def sync_on_a_full_disk(descriptor):
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def ask(state_dir, *sources):
    released = NOT_RELEASED
    for source in sources:
        released = released.with_request(Request(source=source, reason="driver 590", requested_by="alex", since_s=1))
    ReleasedStore(state_dir).write(released)
    return released


def test_a_full_disk_keeps_nobody_from_withdrawing_the_last_request(tmp_path):
    asked = ask(tmp_path, Source.COMMAND)
    store = ReleasedStore(tmp_path, fsync=sync_on_a_full_disk)

    store.write_or_remove(asked.without_until_open(Source.COMMAND))

    assert store.read() == NOT_RELEASED


def test_a_full_disk_lets_no_other_request_go(tmp_path):
    asked = ask(tmp_path, Source.COMMAND, Source.LABEL)
    store = ReleasedStore(tmp_path, fsync=sync_on_a_full_disk)

    with pytest.raises(TryAgain):
        store.write_or_remove(asked.without_until_open(Source.COMMAND))
    assert store.read() == asked


# The mark


def build_nvml(machine):
    return WatchedNvml(SimulatedNvml(machine), timeout_s=0.2)


def test_two_processes_may_have_nvml_open(tmp_path):
    first, second = OpenMark(tmp_path), OpenMark(tmp_path)
    first.hold()
    second.hold()
    first.drop()

    assert OpenMark(tmp_path).is_held()
    second.drop()


def test_a_command_that_opens_it_beside_the_driver_has_it_open(tmp_path):
    FileLocks(tmp_path).folder.mkdir()
    with open_beside(tmp_path, build_nvml(build_machine("h100-80gb"))):
        meanwhile = OpenMark(FileLocks(tmp_path).folder).is_held()

    assert (meanwhile, OpenMark(FileLocks(tmp_path).folder).is_held()) == (True, False)


def test_a_command_whose_nvml_cannot_be_closed_has_it_open_until_it_ends(tmp_path):
    FileLocks(tmp_path).folder.mkdir()
    machine = build_machine("h100-80gb")
    nvml = build_nvml(machine)
    machine.inject(Hang(function="init"))
    with pytest.raises(NvmlTimeout), open_beside(tmp_path, nvml):
        pass

    assert OpenMark(FileLocks(tmp_path).folder).is_held()
    machine.release()


def test_a_command_leaves_nothing_where_no_driver_of_ours_ran(tmp_path):
    with open_beside(tmp_path, build_nvml(build_machine("h100-80gb"))):
        pass

    assert list(tmp_path.iterdir()) == []


def test_nobody_has_it_open_before_anybody_did(tmp_path):
    assert not OpenMark(tmp_path).is_held()


def test_asking_does_not_keep_anybody_from_opening(tmp_path):
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            OpenMark(tmp_path).is_held()

    asking = threading.Thread(target=ask)
    asking.start()
    marks = [OpenMark(tmp_path) for _ in range(50)]
    for mark in marks:
        mark.hold()
    stop.set()
    asking.join()

    assert OpenMark(tmp_path).is_held()
    for mark in marks:
        mark.drop()
