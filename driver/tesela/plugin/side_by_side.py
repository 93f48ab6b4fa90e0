"""Run one job per GPU side by side, so that the slowest GPU is waited for once and holds up no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from contextvars import copy_context
from typing import Generic, TypeVar

from tesela.plugin.deadline import Deadline

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Job(Generic[T]):
    """One job in a thread of its own; what it raises is raised again by whoever takes the result."""

    def __init__(self, run: Callable[[], T], name: str) -> None:
        self._run = run
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        # In the context of its caller: log lines tell whose claim it is for.
        threading.Thread(target=copy_context().run, args=(self._work,), name=name, daemon=True).start()

    def _work(self) -> None:
        try:
            self._result.append(self._run())
        except BaseException as error:  # noqa: BLE001 -- raised again in the caller's thread
            self._error = error
        finally:
            self._done.set()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def take(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


def run_side_by_side(jobs: Mapping[K, Callable[[], T]], *, timeout_s: float, name: str) -> dict[K, T]:
    """The results of the jobs that ended within `timeout_s`, by key; the others are left to end by themselves.

    What a job raised is raised once all have ended, or the time is over; the first in order where several did.
    """
    deadline = Deadline.after(timeout_s)
    started = {key: _Job(run, f"{name}-{key}") for key, run in jobs.items()}
    ended = {key: job for key, job in started.items() if job.wait(deadline.left_s)}
    return {key: job.take() for key, job in ended.items()}
