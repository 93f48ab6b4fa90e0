"""A thread that takes turns: what every part of the node program that looks again and again has in common.

It can be woken, paused and stopped, each within a bound. A turn that fails is said once and taken again. What a turn
does belongs to its owner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tesela.core.errors import TeselaError

log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
LONGEST_TURN_S: Final = 900.0
"""Every wait in a turn is bounded, so one that lasts this long is a fault of ours."""


def plan_pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """The pause after so many failures in a row (1 or more): doubled each time, from `first_s` up to `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 30))


class Loop:
    """Calls `turn` whenever it is woken, and when as many seconds have passed as the last turn returned.

    `first_s` is the time before the first turn, `retry_s` that before the next one where a turn failed. A turn longer
    than `longest_turn_s` is a fault.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        first_s: float = 0.0,
        retry_s: float = RETRY_S,
        longest_turn_s: float = LONGEST_TURN_S,
    ) -> None:
        self._name = name
        self._turn = turn
        self._first_s = first_s
        self._retry_s = retry_s
        self._longest_turn_s = longest_turn_s
        self._began_s: float | None = None
        self._changed = threading.Condition()
        self._has_begun = self._stopped = self._paused = self._woken = self._in_turn = False
        self._last_problem = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def must_end(self) -> bool:
        """Whether a turn under way should come to its end: a stop or a pause waits for it."""
        return self._stopped or self._paused

    def start(self) -> None:
        """Begin; nothing where it has begun."""
        if not self._has_begun:
            self._thread.start()
            self._has_begun = True  # only now: a thread has a number before it counts as alive

    def find_fault(self) -> str | None:
        """What keeps it from working for good, as a sentence; None before the start and after a stop."""
        if not self._has_begun:
            return None
        began_s, lives = self._began_s, self._thread.is_alive()
        if self._stopped:  # asked last: one that ends meanwhile by a stop is no fault
            return None
        if not lives:
            return f"the thread {self._name} has ended"
        if began_s is not None and (took_s := time.monotonic() - began_s) > self._longest_turn_s:
            return f"the thread {self._name} has been at one turn for {took_s:.0f} s"
        return None

    def wake(self) -> None:
        """The next turn comes at once. Costs nothing, from any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        """Within a turn: wait so long, or until the turn must end."""
        with self._changed:
            self._changed.wait_for(lambda: self.must_end, max(seconds, 0.0))

    def pause(self, timeout_s: float) -> bool:
        """Begin no turn until `resume`. False: the one under way did not end within `timeout_s`."""
        with self._changed:
            self._paused = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._in_turn, timeout_s)

    def resume(self) -> None:
        """Go on, with a turn at once."""
        with self._changed:
            self._paused, self._woken = False, True
            self._changed.notify_all()

    def stop(self, timeout_s: float) -> bool:
        """End after the turn under way; False where that took longer. One that never started is ended too."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due_s = time.monotonic() + self._first_s
        while self._wait_for_turn(due_s):
            self._began_s = time.monotonic()
            due_s = time.monotonic() + self._attempt()
            self._began_s = None
            with self._changed:
                self._in_turn = False
                self._changed.notify_all()

    def _wait_for_turn(self, due_s: float) -> bool:
        with self._changed:
            while not self._stopped:
                left_s = due_s - time.monotonic()
                if not self._paused and (self._woken or left_s <= 0):
                    self._woken, self._in_turn = False, True
                    return True
                self._changed.wait(None if self._paused else left_s)
            return False

    def _attempt(self) -> float:
        """The turn; seconds until the next one."""
        try:
            wait_s = self._turn()
        except TeselaError as error:
            if str(error) != self._last_problem:
                log.warning("%s: failed and is repeated: %s", self._name, error)
            self._last_problem = str(error)
        except Exception as error:
            # A fault of ours. Ending here would end every turn to come, without a word.
            if repr(error) != self._last_problem:
                log.exception("%s: failed in an unforeseen way and is repeated", self._name)
            self._last_problem = repr(error)
        else:
            self._last_problem = ""
            return wait_s
        return self._retry_s


class LoopPart:
    """A part of the node program that is one loop; its `__init__` sets `_loop`."""

    _loop: Loop

    def start(self) -> None:
        """Begin; nothing where it has begun."""
        self._loop.start()

    def find_fault(self) -> str | None:
        """What keeps it from working for good, as a sentence; None before the start and after the stop."""
        return self._loop.find_fault()

    def stop(self, timeout_s: float) -> bool:
        """End after the turn under way; False where that took longer. One that never started is ended too."""
        return self._loop.stop(timeout_s)


class PausablePart(LoopPart):
    """One that calls NVML by itself, and so must not while that is released."""

    def pause(self, timeout_s: float) -> bool:
        """Call NVML no more until `resume`. False: a call is still inside NVML after `timeout_s`."""
        return self._loop.pause(timeout_s)

    def resume(self) -> None:
        """Go on, with a turn at once."""
        self._loop.resume()
