"""Reads one moment of the node for a scrape: from memory and from our own files, never from NVML or the API server."""

from __future__ import annotations

from collections.abc import Callable

from tesela import __version__
from tesela.core.record import ClaimRecord
from tesela.core.room import Room, find_largest
from tesela.core.roster import Roster
from tesela.core.slices.offer import plan_foreign_fences
from tesela.core.sweep import SweepReport
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.telemetry.snapshot import Snapshot
from tesela.plugin.assembly import Parts
from tesela.plugin.publish import Publisher


def read_snapshot(parts: Parts, nvml: WatchedNvml, is_registered: Callable[[], bool]) -> Snapshot:
    """The moment. StateError and TryAgain where our own folder cannot be read."""
    node, publisher, report = parts.node, parts.publisher, parts.sweeper.report
    roster, records = node.lookout.roster, node.records.list().records
    return Snapshot(
        version=__version__,
        roster=roster,
        records=records,
        pool=publisher.last_pool,
        health=node.health.health,
        rooms=list_rooms(publisher, roster, records),
        usage=parts.usage.read(),
        wedged_gpus=nvml.wedged_gpus(),
        wedged_node=nvml.wedged_node,
        registered=is_registered(),
        troubles=frozenset(parts.neighbours.standing),
        health_streams=parts.server.health_streams,
        nvml_released=not nvml.is_open,
        event_set_open=parts.observers.events.is_open,
        orphans=count_orphans(report),
        driver_files=keeper.files if (keeper := node.workload.driver_files) is not None else None,
        last_sweep_s=None if report is None else report.began_s + report.took_s,
    )


def count_orphans(report: SweepReport | None) -> dict[str, int]:
    """What stands after the last sweep, by kind. Where it could not compare everything, no 0: there may be some."""
    if report is None:
        return {}
    return {str(kind): count for kind, count in report.count_standing().items() if count or not report.unknown}


def list_rooms(publisher: Publisher, roster: Roster, records: tuple[ClaimRecord, ...]) -> tuple[Room, ...]:
    """The room left on each GPU: claims as they are now, fences and foreign partitions as last published."""
    state = publisher.last_state
    if state is None:
        return ()
    rooms = (
        find_largest(
            known,
            state.policy,
            records=records,
            fences=(*state.fences, *plan_foreign_fences(known, state)),
            live=state.live,
        )
        for known in roster.gpus
    )
    return tuple(room for room in rooms if room is not None)
