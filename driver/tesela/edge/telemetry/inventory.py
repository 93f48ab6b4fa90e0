"""A snapshot of the node as metric families: a pure function, so that what is gone from the snapshot has no series.

`gpu` is the number that device names carry (`gpu-0`), which never moves to another board; `uuid` tells which board.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

from tesela.core.health.model import HealthState
from tesela.core.model import Placement
from tesela.core.record import ClaimState
from tesela.core.room import count_devices
from tesela.core.roster import KnownGpu
from tesela.core.slices.versions import render_cuda_version
from tesela.core.trouble import Trouble
from tesela.edge.telemetry.catalogue import BY_NAME, Kind
from tesela.edge.telemetry.snapshot import Snapshot, Usage

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
_ALL: Final[Placement | None] = None


def render_inventory(snapshot: Snapshot, xids: Mapping[tuple[str, int], int]) -> Iterator[Family]:
    """The families of `snapshot`; `xids` counts by GPU UUID and Xid. A family without samples still has its HELP."""
    for name, samples in _list_samples(snapshot, xids):
        metric = BY_NAME[name]
        family: Family
        if metric.kind is Kind.COUNTER:
            family = counter = CounterMetricFamily(name, metric.help, labels=metric.labels)
            for labels, value in samples:
                counter.add_metric(labels, value)
        else:
            family = gauge = GaugeMetricFamily(name, metric.help, labels=metric.labels)
            for labels, value in samples:
                gauge.add_metric(labels, value)
        yield family


def _list_samples(snapshot: Snapshot, xids: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, Samples]]:
    roster = snapshot.roster
    cuda = render_cuda_version(roster.cuda_driver_version)
    names = {known.gpu.uuid: known.name for known in roster.gpus}
    prepared = sum(record.state is ClaimState.PREPARED for record in snapshot.records)
    yield "tesela_build_info", [((snapshot.version, roster.driver_version, cuda), 1)]
    yield "tesela_gpus", _count((known.gpu.product_name, _state_of(snapshot, known)) for known in roster.gpus)
    yield "tesela_devices", _count_devices(snapshot)
    yield "tesela_gpu_health", _list_health(snapshot)
    yield (
        "tesela_health_findings",
        _count((names.get(one.gpu_uuid, one.gpu_uuid), one.signal, one.state) for one in snapshot.health.findings),
    )
    yield from _list_usage(snapshot, names)
    yield "tesela_claims_prepared", [((), prepared)]
    yield (
        "tesela_nvml_wedged",
        [((name,), snapshot.wedged_node or uuid in snapshot.wedged_gpus) for uuid, name in names.items()],
    )
    yield (
        "tesela_xids_total",
        [((names[uuid], str(xid)), count) for (uuid, xid), count in sorted(xids.items()) if uuid in names],
    )
    yield "tesela_orphans", [((kind,), count) for kind, count in sorted(snapshot.orphans.items())]
    yield (
        "tesela_largest_profile_memory_bytes",
        [
            ((names[room.gpu_uuid], room.profile), room.memory_bytes)
            for room in snapshot.rooms
            if room.gpu_uuid in names
        ],
    )
    yield "tesela_kubelet_registered", [((), snapshot.registered)]
    yield "tesela_node_trouble", [((trouble,), trouble in snapshot.troubles) for trouble in Trouble]
    yield from _list_optional(snapshot)


def _list_optional(snapshot: Snapshot) -> Iterator[tuple[str, Samples]]:
    values = {
        "tesela_slices_published": len(snapshot.pool.slices) if snapshot.pool else None,
        "tesela_health_streams": snapshot.health_streams,
        "tesela_nvml_released": snapshot.nvml_released,
        "tesela_last_sweep_timestamp_seconds": snapshot.last_sweep_s,
        "tesela_event_set_open": snapshot.event_set_open,
    }
    for name, value in values.items():
        yield name, [] if value is None else [((), value)]
    files = snapshot.driver_files
    yield "tesela_driver_libraries", [((files.source, files.driver_version), 1)] if files is not None else []


def _list_usage(snapshot: Snapshot, names: Mapping[str, str]) -> Iterator[tuple[str, Samples]]:
    values: dict[str, list[float | None]] = {
        "tesela_partition_memory_used_bytes": [one.memory_used_bytes for one in snapshot.usage],
        "tesela_partition_memory_total_bytes": [one.memory_total_bytes for one in snapshot.usage],
        "tesela_sm_activity_ratio": [one.sm_activity_ratio for one in snapshot.usage],
    }
    for name, column in values.items():
        yield (
            name,
            [
                (_label(one, names), value)
                for one, value in zip(snapshot.usage, column, strict=True)
                if value is not None and one.gpu_uuid in names
            ],
        )


def _label(one: Usage, names: Mapping[str, str]) -> tuple[str, ...]:
    return names[one.gpu_uuid], one.uuid, one.profile, one.namespace, one.claim


def _state_of(snapshot: Snapshot, known: KnownGpu) -> HealthState:
    """Absence is known to the roster before a finding says so."""
    state = snapshot.health.state_of(known.gpu.uuid, _ALL)
    return state if known.present else HealthState.GONE


def _list_health(snapshot: Snapshot) -> Samples:
    for known in snapshot.roster.gpus:
        current = _state_of(snapshot, known)
        for state in HealthState:
            yield (known.name, known.gpu.uuid, known.gpu.product_name, state), state is current


def _count_devices(snapshot: Snapshot) -> Samples:
    if snapshot.pool is None:
        return []
    counts = count_devices(snapshot.pool, snapshot.records)
    return [((one.model, one.profile, one.state), number) for one, number in counts.items()]


def _count(rows: Iterable[tuple[str, ...]]) -> Samples:
    return [(tuple(str(value) for value in row), number) for row, number in sorted(Tally(rows).items())]
