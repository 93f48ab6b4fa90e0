"""`tesela sim status --watch`: the MIG map of a running simulator, drawn again when something changes.

On a terminal the map stays in place; elsewhere each change is a line, so that it can be piped into a log.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tesela.cli.mig_map import MapBlock, MapRow, render_mig_map
from tesela.cli.sim_status import list_facts, list_remarks, render_health
from tesela.core.model import Placement
from tesela.edge.simulator.admin import SimulatorAdmin

LOOK_S: Final = 0.5
_IDLE: Final = "idle"


def watch_status(admin: SimulatorAdmin, console: Console) -> None:
    """Shows the simulator until SIGINT or SIGTERM. DocumentError, NvmlError: as SimulatorAdmin.send, at any look."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    looks = _list_looks(admin, stop)
    if console.is_terminal:
        _watch_on_terminal(looks, console)
    else:
        _watch_in_lines(looks)


def _watch_on_terminal(looks: Iterator[dict[str, Any]], console: Console) -> None:
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        shown: object = None
        for status in looks:
            look = (status, console.size)
            if look != shown:
                shown = look
                live.update(render_watch(status, console), refresh=True)


def _watch_in_lines(looks: Iterator[dict[str, Any]]) -> None:
    before: dict[str, str] = {}
    for status in looks:
        facts = list_facts(status)
        for line in list_changes(before, facts):
            print(line, flush=True)
        before = facts


def _list_looks(admin: SimulatorAdmin, stop: threading.Event) -> Iterator[dict[str, Any]]:
    while not stop.is_set():
        yield admin.send({"op": "status"})
        stop.wait(LOOK_S)


def list_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """A line for each fact that is new, that has changed, or that is gone; facts as `list_facts` has them."""
    for key, fact in after.items():
        if before.get(key) != fact:
            yield f"{key}: {fact}" if fact else key
    for key in before:
        if key not in after:
            yield f"{key}: gone"


def render_watch(status: dict[str, Any], console: Console) -> Group:
    """The map, a line of health per GPU, and what else there is to say: processes, faults, calls held up."""
    rows = [_plan_row(gpu) for gpu in status["gpus"]]
    plain = console.options.ascii_only
    lines = [Text(f"  {_name(gpu)}  {render_health(gpu['health'])}", style=_style(gpu)) for gpu in status["gpus"]]
    remarks = [Text(f"  {line}") for line in list_remarks(status)]
    return Group(render_mig_map(rows, width=console.width, ascii_only=plain), Text(), *lines, Text(), *remarks)


def _plan_row(gpu: dict[str, Any]) -> MapRow:
    blocks = tuple(
        MapBlock(
            placement=Placement(**instance["placement"]),
            profile=instance["profile"],
            holder=_holder(gpu, instance["gi_id"]) or _IDLE,
        )
        for instance in gpu["instances"]
    )
    return MapRow(
        name=_name(gpu),
        product_name=gpu["product_name"],
        mig="on" if gpu["mig_current"] else "off",
        memory_slices=gpu["memory_slices"],
        blocks=blocks,
        whole_holder=None if blocks else _holder(gpu, None),
        remark="" if gpu["presence"] == "present" else gpu["presence"].upper(),
    )


def _holder(gpu: dict[str, Any], gi_id: int | None) -> str | None:
    names = [f"{p['name']} {p['pid']}" for p in gpu["processes"] if p["gi_id"] == gi_id]
    return ", ".join(names) or None


def _name(gpu: dict[str, Any]) -> str:
    return "gpu-" if gpu["index"] is None else f"gpu-{gpu['index']}"


def _style(gpu: dict[str, Any]) -> str:
    health = gpu["health"]
    needs_care = health["recovery_action"] != "NONE" or health["remap_pending"] or health["remap_failure"]
    return "red" if needs_care or gpu["presence"] != "present" else ""
