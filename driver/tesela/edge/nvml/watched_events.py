"""An event set under the watchdog: its wait has a thread of its own, since it is made to last."""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.event_set import CLOSE_TIMEOUT_S
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import EventSet, NvmlEvent
from tesela.edge.nvml.worker import Worker

EVENT_SET: Final = "the event set"


class WatchedEventSet:
    """`inner`, whose waits have a thread of their own: the watchdog's limit counts on top of a wait's timeout."""

    def __init__(self, inner: EventSet, worker: Worker, limit_s: float) -> None:
        self._inner = inner
        self._worker = worker
        self._limit_s = limit_s
        self._waiting = threading.Lock()

    def wait(self, timeout_s: float) -> NvmlEvent | None:
        """As EventSet.wait. NvmlTimeout: NVML holds the wait up beyond its timeout and the watchdog's limit."""
        if not self._waiting.acquire(blocking=False):
            raise NvmlError(codes.IN_USE, FUNCTIONS["wait_event"], "another thread waits on this event set")
        try:
            limit_s = timeout_s + self._limit_s
            return self._worker.run(FUNCTIONS["wait_event"], partial(self._inner.wait, timeout_s), limit_s)
        finally:
            self._waiting.release()

    def close(self) -> None:
        """As EventSet.close; in another thread than the wait, which it ends."""
        closer = Worker("close-events", EVENT_SET, lambda: None)
        try:
            closer.run("nvmlEventSetFree", self._inner.close, self._limit_s + CLOSE_TIMEOUT_S)
        finally:
            closer.stop()
            self._worker.stop()
