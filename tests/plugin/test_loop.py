"""A thread that takes turns: when they come, that a pause and a stop are bounded, and that a failure ends nothing."""

from __future__ import annotations

import threading

import pytest
from polling import until
from tesela.core.errors import TryAgain
from tesela.plugin.loop import Loop

LONG_S = 60.0


class Turns:
    """A loop whose turns are counted; each waits for `gate`, and fails with what `errors` holds."""

    def __init__(self, wait_s=LONG_S, **loop):
        self.count, self.wait_s, self.errors = 0, wait_s, []
        self.gate = threading.Event()
        self.gate.set()
        self.loop = Loop("turns", self._turn, **loop)

    def _turn(self):
        self.count += 1
        self.gate.wait(LONG_S)
        if self.errors:
            raise self.errors.pop(0)
        return self.wait_s


@pytest.fixture
def started():
    """Makes a running loop; all are stopped at the end."""
    made = []

    def make(wait_s=LONG_S, errors=(), **loop):
        turns = Turns(wait_s, **loop)
        turns.errors = list(errors)
        made.append(turns)
        turns.loop.start()
        return turns

    yield make
    for turns in made:
        turns.gate.set()
        assert turns.loop.stop(10)


def test_turns_follow_each_other_after_the_time_that_the_last_one_gave(started):
    turns = started(wait_s=0.01)

    assert until(lambda: turns.count >= 3)


def test_the_first_turn_may_come_later(started):
    turns = started(first_s=LONG_S)

    assert turns.loop.stop(10)
    assert turns.count == 0


def test_a_wake_brings_the_next_turn_at_once(started):
    turns = started(first_s=LONG_S)

    turns.loop.wake()

    assert until(lambda: turns.count == 1)


def test_a_pause_waits_for_the_turn_under_way_within_its_bound(started):
    turns = started(first_s=LONG_S)
    turns.gate.clear()
    turns.loop.wake()
    assert until(lambda: turns.count == 1)

    assert not turns.loop.pause(0.01)


def test_no_turn_begins_while_it_is_paused(started):
    turns = started(wait_s=0.01)
    assert turns.loop.pause(10)
    before = turns.count

    turns.loop.wake()

    assert not until(lambda: turns.count > before, timeout_s=0.1)


def test_a_turn_comes_at_once_when_it_is_resumed(started):
    turns = started(first_s=LONG_S)
    assert turns.loop.pause(10)

    turns.loop.resume()

    assert until(lambda: turns.count == 1)


def test_a_loop_that_is_paused_can_be_stopped(started):
    turns = started()
    assert turns.loop.pause(10)

    assert turns.loop.stop(10)


def test_a_loop_that_never_started_can_be_stopped():
    assert Turns().loop.stop(0)


@pytest.mark.parametrize("error", [TryAgain("busy"), ValueError("nobody foresaw this")])
def test_a_turn_that_fails_is_taken_again(started, error):
    turns = started(errors=[error, error], retry_s=0.01)

    assert until(lambda: turns.count == 3)


def test_a_failure_is_said_once(started, caplog):
    turns = started(errors=[TryAgain("busy")] * 3, retry_s=0.01)

    assert until(lambda: turns.count == 4)
    said = [record.getMessage() for record in caplog.records if record.name == "tesela.plugin.loop"]
    assert said == ["turns: failed and is repeated: busy"]


def test_a_turn_that_rests_goes_on_when_it_must_end():
    loop = Loop("rests", lambda: 0.0)
    loop.stop(0)

    loop.rest(LONG_S)

    assert loop.must_end


def test_before_its_start_nothing_is_wrong():
    assert Loop("x", lambda: 60.0).find_fault() is None


def test_while_it_begins_nothing_is_wrong():
    loop, seen = Loop("x", lambda: LONG_S), []

    class Asking(threading.Event):
        """Set by a thread that has begun, and lives from then on."""

        def set(self):
            seen.append(loop.find_fault())
            super().set()

    loop._thread._started = Asking()
    loop.start()

    assert (seen, loop.stop(10)) == ([None], True)


def test_while_it_works_nothing_is_wrong(started):
    assert started().loop.find_fault() is None


def test_a_turn_that_lasts_too_long_is_a_fault(started):
    turns = started(longest_turn_s=0.01)
    turns.gate.clear()
    turns.loop.wake()

    assert until(lambda: "turns has been at one turn" in (turns.loop.find_fault() or ""))


def test_after_its_stop_nothing_is_wrong(started):
    turns = started()
    turns.loop.stop(10)

    assert turns.loop.find_fault() is None
