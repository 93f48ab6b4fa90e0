"""A thread that calls NVML for others, who wait for it no longer than a limit: the part of the watchdog that waits.

A job is put in line, begun, and finished. A job is one call, or a step of several; the limit is each call's own. Its
caller may give up before it begins (then it is never made) or while a call runs (then the worker is overdue until that
returns, and the rest of the step is not made). Which calls share a worker is decided in `watchdog`.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.edge.nvml import codes

R = TypeVar("R")
LIMITS_IN_LINE: Final = 3
"""How many times its limit a job waits behind others that get on: a step of many slow calls is no reason to give up."""
_ABOUT_TO_BEGIN_S: Final = 0.05
_LOG: Final = logging.getLogger(__name__)


class Job(Generic[R]):
    """One job on its way through a worker. `started` and `cancelled` exclude each other, under the worker's lock.

    `function`, `limit_s` and `started_at` are those of the call that runs now.
    """

    __slots__ = (
        *("cancelled", "context", "done", "error", "finished", "function", "limit_s", "put_at", "result"),
        *("run", "started", "started_at", "told"),
    )

    def __init__(self, function: str, run: Callable[[], R], limit_s: float) -> None:
        self.function = function
        self.run = run
        self.limit_s = limit_s
        # A lock that is held until the job is over: cheaper to make and to wait for than an Event.
        self.done = threading.Lock()
        self.done.acquire()
        self.started = self.finished = self.told = False
        self.put_at, self.started_at = time.monotonic(), 0.0
        self.cancelled = False
        self.context = contextvars.copy_context()  # whose claim it is for, which log lines tell
        self.result: R | None = None
        self.error: BaseException | None = None

    @property
    def left_s(self) -> float:
        """What the call that runs now has left."""
        return self.started_at + self.limit_s - time.monotonic()


class Worker:
    """A thread for the calls about `where`. `overdue` is the function whose caller gave up, while it still runs.

    `stopped`: its thread ends after the jobs in line, and it takes no more. `on_change` is told of each change of
    `overdue`.
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

    def run(self, function: str, call: Callable[[], R], limit_s: float) -> R:
        """What `call` returns. NvmlTimeout: it has not come back `limit_s` after it began, or an earlier one has not.

        A job waits in line as long as those before it get on, LIMITS_IN_LINE times `limit_s` at most; given up there,
        it is never made. NvmlError with UNINITIALIZED once the worker was stopped. From inside a job the call is made
        at once, with a limit of its own.
        """
        if threading.current_thread() is self._thread:
            return self._run_inside(function, call, limit_s)
        overdue = self.overdue
        if overdue is not None:
            raise NvmlTimeout(self._sentence(function, f"not tried, {overdue} has not returned yet"))
        job = Job(function, call, limit_s)
        with self.lock:
            if self.stopped:
                raise NvmlError(codes.UNINITIALIZED, function, f"{self._where} is closed")
            self._jobs.put(job)
        wait_s = limit_s
        while not job.done.acquire(timeout=wait_s):
            more_s = self.give_up(job)
            if more_s is None:
                break
            wait_s = more_s
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]  # set by the worker before `done`; None only if R is None

    def check_awaited(self, function: str) -> None:
        """NvmlTimeout where the caller of the job that runs now has given up. For the job itself, in its thread."""
        with self.lock:
            if self.overdue is not None:
                raise NvmlTimeout(self._sentence(function, "not tried, it began too late"))

    def stop(self) -> None:
        """Ends the thread after the jobs in line."""
        with self.lock:
            self.stopped = True
            self._jobs.put(None)

    def give_up(self, job: Job[Any]) -> float | None:
        """Raises NvmlTimeout, unless the job is finished (None) or has more time, in seconds."""
        with self.lock:
            if job.finished:
                return None
            if not job.started:
                return self._wait_in_line(job)
            left_s = job.left_s  # read once: it runs out between two looks, too
            if left_s > 0:
                return left_s
            self.overdue = job.function
        self._tell()
        raise NvmlTimeout(self._sentence(job.function, f"did not return within {job.limit_s:g} s"))

    def _wait_in_line(self, job: Job[Any]) -> float:
        ahead = self._current
        left_s = ahead.left_s if ahead is not None else _ABOUT_TO_BEGIN_S
        patience_s = job.put_at + LIMITS_IN_LINE * job.limit_s - time.monotonic()
        if self.overdue is None and left_s > 0 and patience_s > 0:
            return min(left_s, patience_s)
        job.cancelled = True
        if self.overdue is not None or left_s <= 0:
            raise NvmlTimeout(self._sentence(job.function, "not tried, an earlier call has not returned yet"))
        busy = f"not tried, others have kept it busy for {LIMITS_IN_LINE * job.limit_s:g} s"
        raise NvmlTimeout(f"{job.function} on {self._where}: {busy}; it gets on, and may be tried again")

    def _run_inside(self, function: str, call: Callable[[], R], limit_s: float) -> R:
        with self.lock:
            job = self._current
            assert job is not None, "the worker's thread runs nothing but jobs"
            if self.overdue is not None:
                # Whoever wanted the step has given up: what he does not know of must not be done.
                raise NvmlTimeout(self._sentence(function, f"not tried, {self.overdue} returned too late"))
            job.function, job.limit_s, job.started_at = function, limit_s, time.monotonic()
        try:
            result = call()
        except BaseException as error:
            self._tell_if_late(job, f"failed: {error}; the rest of its step is not made")
            raise
        self._tell_if_late(job, "succeeded; the rest of its step is not made")
        return result

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self.lock:
                if job.cancelled:
                    continue
                job.started, job.started_at = True, time.monotonic()
                self._current = job
            try:
                job.result = job.context.run(job.run)
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                job.error = error
            job.context.run(self._tell_if_late, job, "succeeded" if job.error is None else f"failed: {job.error}")
            with self.lock:
                job.finished, self._current = True, None
                late, self.overdue = self.overdue, None
            job.done.release()
            if late is not None:
                self._tell()
            del job  # or the last result stays alive while the thread waits

    def _tell_if_late(self, job: Job[Any], outcome: str) -> None:
        """Says what a call did whose caller no longer waits to hear it: once, as it returns."""
        if self.overdue is None or job.told:
            return
        job.told = True
        took_s = time.monotonic() - job.started_at
        _LOG.warning("%s on %s returned after %.1f s and %s", job.function, self._where, took_s, outcome)

    def _tell(self) -> None:
        try:
            self._on_change()
        except Exception:  # noqa: BLE001 - it must neither end this thread nor hide what the caller is told
            _LOG.exception("a listener failed to hear that %s hangs, or hangs no longer", self._where)

    def _sentence(self, function: str, what: str) -> str:
        hint = "if it lasts, look for Xid errors in the node's kernel log"
        return f"{function} on {self._where}: {what}; {hint}"
