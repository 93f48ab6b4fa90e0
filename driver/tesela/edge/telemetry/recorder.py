"""`Telemetry` that measures: numbers into `Metrics`, spans into `Traces`, either or both."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Final

from tesela.edge.telemetry.outcome import name_cause, plan_result
from tesela.edge.telemetry.port import Phase
from tesela.edge.telemetry.work import WORK, Work

if TYPE_CHECKING:
    from tesela.edge.telemetry.metrics import Metrics
    from tesela.edge.telemetry.traces import OpenSpan, Traces

TOTAL: Final = "total"
"""The phase under which a whole operation is counted."""
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


class Recorder:
    """Implements `Telemetry`. Neither part is imported where it was not asked for."""

    def __init__(self, metrics: Metrics | None = None, traces: Traces | None = None) -> None:
        self._metrics = metrics
        self._traces = traces

    def operation(self) -> AbstractContextManager[None]:
        work = WORK.get()
        return _NOTHING if work is None else _Timed(self._metrics, self._traces, work, TOTAL)

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        work = WORK.get()
        return _NOTHING if work is None else _Timed(self._metrics, self._traces, work, phase)

    def observe_nvml_call(self, function: str, code: int | None, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.observe_nvml_call(function, code, seconds)

    def observe_api_request(self, verb: str, resource: str, code: int) -> None:
        if self._metrics is not None:
            self._metrics.count_api_request(verb, resource, code)

    def observe_lock_wait(self, lock: str, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.observe_lock_wait(lock, seconds)

    def count_slice_write(self) -> None:
        if self._metrics is not None:
            self._metrics.count_slice_write()

    def count_record_set_aside(self) -> None:
        if self._metrics is not None:
            self._metrics.count_record_set_aside()

    def count_xids(self, gpu_uuid: str, xid: int, count: int = 1) -> None:
        if self._metrics is not None:
            self._metrics.count_xids(gpu_uuid, xid, count)


class _Timed(AbstractContextManager[None]):
    """One block of work: its time, its result, its span."""

    __slots__ = ("_began_s", "_metrics", "_phase", "_span", "_traces", "_work")

    def __init__(self, metrics: Metrics | None, traces: Traces | None, work: Work, phase: str) -> None:
        self._metrics = metrics
        self._traces = traces
        self._work = work
        self._phase = phase
        self._began_s = 0.0
        self._span: OpenSpan | None = None

    def __enter__(self) -> None:
        if self._traces is not None:
            self._span = self._traces.begin(self._work, None if self._phase is TOTAL else self._phase)
        self._began_s = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        took_s = time.perf_counter() - self._began_s
        result = plan_result(error)
        if self._metrics is not None:
            self._metrics.observe_operation(self._work.verb, self._phase, result, took_s)
            if error is not None and self._phase is TOTAL:
                self._metrics.count_failure(self._work.verb, name_cause(error))
        if self._span is not None:
            self._span.end(result, error)
