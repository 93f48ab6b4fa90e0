"""Numbers for Prometheus, in a registry of their own: what is counted as it happens, and what is read at a scrape.

What comes and goes (GPUs, claims, findings) is never stored as a series: a collector renders it from the facts of the
moment, so that what is gone leaves nothing behind. Only verbs, phases, functions and codes are, of which there are few.
"""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tesela.edge.nvml import codes
from tesela.edge.telemetry.catalogue import BY_NAME
from tesela.edge.telemetry.inventory import render_inventory
from tesela.edge.telemetry.outcome import CAUSES
from tesela.edge.telemetry.snapshot import Snapshot
from tesela.edge.telemetry.work import OPERATIONS

_OPERATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_NVML_BUCKETS_S: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 5, 15)
_LOCK_BUCKETS_S: Final = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
_CODE_NAMES: Final = {code: name.lower() for name, code in codes.RETURN_CODES.items()}


class Metrics:
    """All metrics of one driver process. Safe for many threads."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nothing here reads
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self._operations = self._make_histogram("tesela_claim_operation_seconds", _OPERATION_BUCKETS_S)
        self._nvml_calls = self._make_histogram("tesela_nvml_call_seconds", _NVML_BUCKETS_S)
        self._lock_waits = self._make_histogram("tesela_lock_wait_seconds", _LOCK_BUCKETS_S)
        self._failures = self._make_counter("tesela_claim_failures_total")
        for labels in product(OPERATIONS, CAUSES):
            self._failures.labels(*labels)  # a series that began at 1 would have no increase for its first failure
        self._api_requests = self._make_counter("tesela_api_requests_total")
        self._slice_writes = self._make_counter("tesela_slice_writes_total")
        self._set_aside = self._make_counter("tesela_records_set_aside_total")
        self._xids: Tally[tuple[str, int]] = Tally()
        self._guard = threading.Lock()
        # A look-up by label values costs more than the observation itself, and each prepare makes dozens.
        self._operation_series: dict[tuple[str, str, str], Histogram] = {}
        self._nvml_series: dict[tuple[str, int | None], Histogram] = {}
        self._lock_series: dict[str, Histogram] = {}

    def watch(self, read: Callable[[], Snapshot]) -> None:
        """Show what `read` returns at each scrape. It must neither wait for NVML nor for the API server."""
        self.registry.register(_Inventory(read, self._list_xids))

    def render(self, accept: str) -> tuple[str, bytes]:
        """The exposition for an Accept header: its content type and its bytes."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self.registry)

    def observe_operation(self, verb: str, phase: str, result: str, seconds: float) -> None:
        """A part of the work on one claim took so long."""
        key = (verb, phase, result)
        series = self._operation_series.get(key)
        if series is None:
            series = self._operation_series[key] = self._operations.labels(*key)
        series.observe(seconds)

    def count_failure(self, verb: str, cause: str) -> None:
        """A call for one claim failed."""
        self._failures.labels(verb, cause).inc()

    def observe_nvml_call(self, function: str, code: int | None, seconds: float) -> None:
        """As Telemetry.observe_nvml_call."""
        key = (function, code)
        series = self._nvml_series.get(key)
        if series is None:
            series = self._nvml_series[key] = self._nvml_calls.labels(function, _render_code(code))
        series.observe(seconds)

    def observe_lock_wait(self, lock: str, seconds: float) -> None:
        """As Telemetry.observe_lock_wait."""
        series = self._lock_series.get(lock)
        if series is None:
            series = self._lock_series[lock] = self._lock_waits.labels(lock)
        series.observe(seconds)

    def count_api_request(self, verb: str, resource: str, code: int) -> None:
        """As Telemetry.observe_api_request."""
        self._api_requests.labels(verb, resource, str(code)).inc()

    def count_slice_write(self) -> None:
        """As Telemetry.count_slice_write."""
        self._slice_writes.inc()

    def count_record_set_aside(self) -> None:
        """As Telemetry.count_record_set_aside."""
        self._set_aside.inc()

    def count_xids(self, gpu_uuid: str, xid: int, count: int) -> None:
        """As Telemetry.count_xids."""
        with self._guard:
            self._xids[gpu_uuid, xid] += count

    def _list_xids(self) -> dict[tuple[str, int], int]:
        with self._guard:
            return dict(self._xids)

    def _make_histogram(self, name: str, buckets_s: tuple[float, ...]) -> Histogram:
        metric = BY_NAME[name]
        return Histogram(name, metric.help, metric.labels, buckets=buckets_s, registry=self.registry)

    def _make_counter(self, name: str) -> Counter:
        metric = BY_NAME[name]
        return Counter(name, metric.help, metric.labels, registry=self.registry)


class _Inventory(Collector):
    """Renders one snapshot per scrape."""

    def __init__(self, read: Callable[[], Snapshot], list_xids: Callable[[], dict[tuple[str, int], int]]) -> None:
        self._read = read
        self._list_xids = list_xids

    def collect(self) -> Iterator[Family]:
        return render_inventory(self._read(), self._list_xids())


def _render_code(code: int | None) -> str:
    if code is None:
        return "timeout"
    return "ok" if code == codes.SUCCESS else _CODE_NAMES.get(code, str(code))
