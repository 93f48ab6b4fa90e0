"""The text of `tesela health signals`: a line per signal, those that condemn first, aligned."""

from __future__ import annotations

import json
from typing import Final

from tesela.core.health.model import Counted, HealthState, Signal
from tesela.core.health.signals import HealthPolicy

_HEADER: Final = ("SIGNAL", "STATE", "TAINT", "EFFECT", "FROM", "RECOVERY", "MEANING")


def render_signals(policy: HealthPolicy, *, as_json: bool) -> str:
    """The table that holds under `policy`; JSON has the remedies and sources too."""
    if as_json:
        return json.dumps({"signals": [_render(row) for row in _sort(policy)]}, indent=2)
    cells = [_HEADER, *(_list_cells(row) for row in _sort(policy))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def _sort(policy: HealthPolicy) -> list[Signal]:
    """Those that condemn first, then by name, Xids by number."""
    return sorted(policy.table.values(), key=lambda row: (row.state is HealthState.HEALTHY, *_rank(row)))


def _rank(row: Signal) -> tuple[str, int, str]:
    number = row.name.removeprefix("xid-")
    return (row.key, int(number) if number.isdecimal() else 0, row.name)


def _list_cells(row: Signal) -> tuple[str, ...]:
    harmless = row.state is HealthState.HEALTHY
    return (
        row.name,
        "counted" if harmless else row.state.value,
        "-" if harmless else f"{row.key}={row.value}",
        "-" if harmless else row.effect.value,
        describe_threshold(row),
        row.evidence.value,
        row.meaning,
    )


def describe_threshold(row: Signal) -> str:
    """From when on it counts, as in `3 events` or `64 aggregate`; `state` for what is so or is not."""
    match row.counted:
        case Counted.STATE:
            return "state"
        case Counted.EVENTS:
            return "1 event" if row.threshold == 1 else f"{row.threshold} events"
        case _:
            return f"{row.threshold} {row.counted}"


def _render(row: Signal) -> dict[str, object]:
    return {
        "signal": row.name,
        "state": row.state.value,
        "taint": f"{row.key}={row.value}",
        "effect": row.effect.value,
        "counted": row.counted.value,
        "threshold": row.threshold,
        "recovery": row.evidence.value,
        "reach": row.reach.value,
        "meaning": row.meaning,
        "remedy": row.remedy,
        "source": row.source,
    }
