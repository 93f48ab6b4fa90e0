"""A thread that calls NVML for others, who wait for it no longer than a limit: the part of the watchdog that waits.

A job is put in line, begun, and finished; its caller may give up before it begins (then it is never made) or while it
runs (then the worker is overdue until it returns). Which calls share a worker is decided in `watchdog`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.edge.nvml import codes

R = TypeVar("R")
_LOG: Final = logging.getLogger(__name__)


class Job(Generic[R]):
    """One call on its way through a worker. `started` and `cancelled` exclude each other, under the worker's lock."""

    __slots__ = (
        *("cancelled", "done", "error", "finished", "function", "limit_s", "result", "run", "started", "started_at"),
    )

    def __init__(self, function: str, run: Callable[[], R], limit_s: float) -> None:
        self.function = function
        self.run = run
        self.limit_s = limit_s
        # A lock that is held until the call is over: cheaper to make and to wait for than an Event.
        self.done = threading.Lock()
        self.done.acquire()
        self.started = self.finished = False
        self.started_at = 0.0
        self.cancelled = False
        self.result: R | None = None
        self.error: BaseException | None = None


class Worker:
    """A thread for the calls about `where`. `overdue` is the function whose caller gave up, while it still runs.

    `stopped`: its thread ends after the calls in line, and it takes no more.
    """

    def __init__(self, name: str, where: str, on_change: Callable[[], None]) -> None:
        self._where = where
        self._on_change = on_change
        self.lock = threading.Lock()
        self.overdue: str | None = None
        self.stopped = False
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._current: Job[Any] | None = None
        self._thread = threading.Thread(target=self._work, name=f"nvml-{name}", daemon=True)
        self._thread.start()

    @property
    def is_caller(self) -> bool:
        """Whether the worker's own thread asks, from inside a job."""
        return threading.current_thread() is self._thread

    def run(self, function: str, call: Callable[[], R], limit_s: float) -> R:
        """What `call` returns. NvmlTimeout: it has not come back `limit_s` after it began, or an earlier one has not.

        A call that waits in line is given up after `limit_s` too, and then never made. NvmlError with UNINITIALIZED
        once the worker was stopped. From inside a job the call is made at once, and the job's limit begins anew.
        """
        if self.is_caller:
            return self._run_inside(function, call, limit_s)
        overdue = self.overdue
        if overdue is not None:
            raise NvmlTimeout(self._sentence(function, f"not tried, {overdue} has not returned yet"))
        job = Job(function, call, limit_s)
        with self.lock:
            if self.stopped:
                raise NvmlError(codes.UNINITIALIZED, function, f"{self._where} is closed")
            self._jobs.put(job)
        if not job.done.acquire(timeout=limit_s):
            self.give_up(job)
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]  # set by the worker before `done`; None only if R is None

    def _run_inside(self, function: str, call: Callable[[], R], limit_s: float) -> R:
        with self.lock:
            job = self._current
            assert job is not None, "the worker's thread runs nothing but jobs"
            if self.overdue is not None:
                # Whoever wanted the job has given up: what he does not know of must not be done.
                raise NvmlTimeout(self._sentence(function, f"not tried, {self.overdue} returned too late"))
            job.function, job.limit_s, job.started_at = function, limit_s, time.monotonic()
        return call()

    def stop(self) -> None:
        """Ends the thread after the calls in line."""
        with self.lock:
            self.stopped = True
            self._jobs.put(None)

    def give_up(self, job: Job[Any]) -> None:
        """Raises NvmlTimeout, unless the call has just come back or still has time."""
        with self.lock:
            if job.finished:
                return
            if not job.started:
                job.cancelled = True
                raise NvmlTimeout(self._sentence(job.function, "not tried, an earlier call has not returned yet"))
            remaining_s = job.started_at + job.limit_s - time.monotonic()
            if remaining_s <= 0:
                self.overdue = job.function
                self._on_change()
                raise NvmlTimeout(self._sentence(job.function, f"did not return within {job.limit_s:g} s"))
        # It waited in line first: the call itself still has time.
        if not job.done.acquire(timeout=remaining_s):
            self.give_up(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self.lock:
                if job.cancelled:
                    continue
                job.started, job.started_at = True, time.monotonic()
                self._current = job
            try:
                job.result = job.run()
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                job.error = error
            with self.lock:
                job.finished, self._current = True, None
                late, self.overdue = self.overdue, None
            if late is not None:
                took_s = time.monotonic() - job.started_at
                outcome = f"failed: {job.error}" if job.error is not None else "succeeded"
                _LOG.warning("%s on %s returned after %.1f s and %s", late, self._where, took_s, outcome)
                self._on_change()
            job.done.release()
            del job  # or the last result stays alive while the thread waits

    def _sentence(self, function: str, what: str) -> str:
        hint = "if it lasts, look for Xid errors in the node's kernel log"
        return f"{function} on {self._where}: {what}; {hint}"
