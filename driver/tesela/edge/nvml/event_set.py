"""`SlicedEventSet`: what every backend's event set does about threads, over one short wait of that backend.

NVML cannot be woken from a wait, and a set must not be freed below one (nvml.h names no answer for either). So a wait
is made of slices, between which it notices that the set was closed, and whoever closes the set waits for the waiter to
leave before NVML frees it. What one slice asks of NVML belongs to the backend.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import NvmlEvent

SLICE_S: Final = 0.5
"""How long a closed set's wait may go on: two calls a second cost an idle node nothing."""
CLOSE_TIMEOUT_S: Final = 10.0
_BREATH_S: Final = 0.05
"""Where NVML returns early without an event, so that it is not asked in a busy loop."""
_FUNCTION: Final = FUNCTIONS["wait_event"]
_LOG: Final = logging.getLogger(__name__)


class SlicedEventSet:
    """An EventSet. `wait_slice(seconds)` is one wait of the backend, None for a timeout; `free` ends the set there."""

    def __init__(
        self,
        wait_slice: Callable[[float], NvmlEvent | None],
        free: Callable[[], None],
        *,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_slice = wait_slice
        self._free = free
        self._close_timeout_s = close_timeout_s
        self._clock = clock
        self._freeing = threading.Lock()
        self._freed = False
        self._left = threading.Condition()
        self._waiting = False
        self._closed = False
        self._abandoned = False
        """Who closed the set could not wait for the waiter any longer, which then frees it itself."""

    def wait(self, timeout_s: float) -> NvmlEvent | None:
        with self._left:
            if self._closed:
                raise NvmlError(codes.UNINITIALIZED, _FUNCTION, "the event set is closed")
            if self._waiting:
                raise NvmlError(codes.IN_USE, _FUNCTION, "another thread waits on this event set")
            self._waiting = True
        try:
            return self._wait_in_slices(self._clock() + timeout_s)
        finally:
            with self._left:
                self._waiting = False
                self._left.notify_all()
                abandoned = self._abandoned
            if abandoned:
                self._free_once()

    def close(self) -> None:
        self.begin_to_close()
        self.free_within(self._close_timeout_s)

    def begin_to_close(self) -> None:
        """Ends the wait after its slice, and lets no further one begin; does not wait for that."""
        with self._left:
            self._closed = True
            self._left.notify_all()

    def free_within(self, timeout_s: float) -> None:
        """Frees a set that was closed once nobody waits. NvmlTimeout: somebody does; the set is freed after that."""
        with self._left:
            if not self._left.wait_for(lambda: not self._waiting, timeout_s):
                self._abandoned = True
                raise NvmlTimeout(f"nvmlEventSetFree: not called yet, since {_FUNCTION} has not returned")
        self._free_once()

    def _wait_in_slices(self, end_s: float) -> NvmlEvent | None:
        while True:
            now_s = self._clock()
            slice_s = min(max(end_s - now_s, 0.0), SLICE_S)
            event = self._wait_slice(slice_s)
            if event is not None or self._closed or self._clock() >= end_s:
                return event
            early_s = now_s + slice_s - self._clock()
            if early_s > 0:
                with self._left:
                    self._left.wait_for(lambda: self._closed, min(early_s, _BREATH_S))

    def _free_once(self) -> None:
        with self._freeing:
            if not self._freed:
                self._freed = True
                self._free()


class OpenEventSets:
    """The sets that a backend has open, so that its `shutdown` closes them before it shuts NVML down."""

    def __init__(self, *, close_timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        self._close_timeout_s = close_timeout_s
        self._lock = threading.Lock()
        self._sets: list[SlicedEventSet] = []

    def open(self, wait_slice: Callable[[float], NvmlEvent | None], free: Callable[[], None]) -> SlicedEventSet:
        """A new set (see SlicedEventSet), remembered until it is freed."""

        def free_and_forget() -> None:
            with self._lock:
                self._sets.remove(event_set)
            free()

        event_set = SlicedEventSet(wait_slice, free_and_forget, close_timeout_s=self._close_timeout_s)
        with self._lock:
            self._sets.append(event_set)
        return event_set

    def close_all(self) -> None:
        """Closes every set, within the time for one. NvmlTimeout: a wait does not end; the other sets are closed.

        A set that NVML refuses to free is logged and left to the shutdown that comes next.
        """
        with self._lock:
            open_now = list(self._sets)
        stuck: NvmlTimeout | None = None
        for event_set in open_now:
            event_set.begin_to_close()
        end_s = time.monotonic() + self._close_timeout_s
        for event_set in open_now:
            try:
                event_set.free_within(max(end_s - time.monotonic(), 0.0))
            except NvmlTimeout as error:
                stuck = error
            except NvmlError as error:
                _LOG.warning("an event set was not freed: %s", error)
        if stuck is not None:
            raise stuck
