"""`tesela sim status --watch`: the MIG map of a running simulator, drawn again when something changes.

On a terminal the map stays in place; elsewhere each change is a line, so that it can be piped into a log.
"""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tesela.cli.mig_map import MapBlock, MapRow, render_mig_map
from tesela.cli.sim_status import is_as_new, list_facts, list_remarks, render_health
from tesela.cli.sim_stop import stop_on_signals
from tesela.core.model import Placement
from tesela.edge.simulator.admin import SimulatorAdmin

LOOK_S: Final = 0.5
_IDLE: Final = "idle"


def watch_status(admin: SimulatorAdmin, console: Console) -> None:
    """Shows the simulator until SIGINT or SIGTERM.

    DocumentError, NvmlError: as SimulatorAdmin.send, at any look. BrokenPipeError: nobody reads what is shown.
    """
    stop = stop_on_signals()
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
        # Where nothing changes nothing is written, so that no write would tell.
        if _is_reader_gone():
            raise BrokenPipeError


def _is_reader_gone() -> bool:
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False  # no file behind it: whoever replaced it reads it
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def list_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """A line for each fact that is new, that has changed, or that is gone; facts as `list_facts` has them."""
    for key, fact in after.items():
        if before.get(key) != fact:
            yield f"{key}: {fact}" if fact else key
    for key in before:
        if key not in after:
            yield f"{key}: gone"


def render_watch(status: dict[str, Any], console: Console) -> Group:
    """The map, a line of health per GPU that is not as new, processes, faults, and calls held up."""
    rows = [_plan_row(gpu) for gpu in status["gpus"]]
    plain = console.options.ascii_only
    worn = [gpu for gpu in status["gpus"] if not is_as_new(gpu["health"])]
    lines = [Text(f"  {_name(gpu)}  {render_health(gpu['health'])}", style=_style(gpu)) for gpu in worn]
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
