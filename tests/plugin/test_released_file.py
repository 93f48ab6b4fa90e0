"""The file by which an operator and the driver talk about NVML, and the mark of a process that has it open."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st
from tesela.core.released import NOT_RELEASED, Released, Request, Source
from tesela.edge.documents.released import decode_released, encode_released
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.released import OpenMark, open_beside

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


# The mark


def test_two_processes_may_have_nvml_open(tmp_path):
    first, second = OpenMark(tmp_path), OpenMark(tmp_path)
    first.hold()
    second.hold()
    first.drop()

    assert OpenMark(tmp_path).is_held()
    second.drop()


def test_a_command_that_opens_it_beside_the_driver_has_it_open(tmp_path):
    FileLocks(tmp_path).folder.mkdir()
    with open_beside(tmp_path):
        meanwhile = OpenMark(FileLocks(tmp_path).folder).is_held()

    assert (meanwhile, OpenMark(FileLocks(tmp_path).folder).is_held()) == (True, False)


def test_a_command_leaves_nothing_where_no_driver_of_ours_ran(tmp_path):
    with open_beside(tmp_path):
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
