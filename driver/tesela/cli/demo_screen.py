"""What the demo looks like: a progress line on a terminal, a line per step, the map, who holds what, a picture.

Colours and the moving line appear on a terminal only; NO_COLOR and `--no-color` are honoured.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from tesela.cli.demo_pods import Holding
from tesela.cli.demo_steps import Step
from tesela.cli.mig_map import MAX_WIDTH, Detail, MapRow, render_mig_map

_FONT_FACE: Final = re.compile(r"@font-face\s*\{[^}]*\}")
_INDENT: Final = 4
_MAX_HOLDINGS: Final = 24


class Screen:
    """Shows steps and maps on `console`."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self.console = console
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def announce(self, title: str, done: int, total: int) -> None:
        """What is under way now; on a terminal only."""
        self._progress.update(self._task, description=title, completed=done, total=total, refresh=True)

    def show(self, step: Step) -> None:
        """A step that is done."""
        self.console.print(render_step_line(step, ascii_only=self._ascii_only))
        for remark in step.remarks:
            self.console.print(Text(f"{' ' * _INDENT}{remark}", style="dim"))
        if step.rows:
            self.console.print()
            self.console.print(self.render_map(step.rows))
            self.console.print()
        if step.holdings:
            self.console.print(render_holdings(step.holdings))
            self.console.print()

    def render_map(self, rows: Sequence[MapRow], detail: Detail = Detail.FULL) -> Text:
        """The map as wide as the screen allows."""
        return render_mig_map(rows, width=self.console.width, detail=detail, ascii_only=self._ascii_only)

    @contextmanager
    def live(self) -> Iterator[Live | None]:
        """A part of the screen that is drawn anew in place; None where this is no terminal."""
        if not self.console.is_terminal:
            yield None
            return
        self._progress.stop()
        with Live(console=self.console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
            yield live
        self._progress.start()

    @property
    def _ascii_only(self) -> bool:
        return self.console.options.ascii_only


@contextmanager
def open_screen(*, colour: bool) -> Iterator[Screen]:
    """The screen on stdout; its progress line vanishes at the end."""
    # What is no terminal has no width of its own: a file or a pipe gets all columns that the map can use.
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else MAX_WIDTH
    console = Console(highlight=False, no_color=None if colour else True, width=width)
    progress = Progress(
        SpinnerColumn(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        yield Screen(console, progress)


def render_step_line(step: Step, *, ascii_only: bool = False) -> Text:
    """One line: a mark, the step's name, its sentence and how long it took."""
    mark = "+" if ascii_only else "✔"
    return Text.assemble(
        (f"{mark} ", "bold green"),
        (f"{step.name:<9} ", "bold"),
        (step.sentence, "default"),
        (f"  {_duration(step.took_s)}", "dim"),
    )


def render_holdings(holdings: Sequence[Holding]) -> Text:
    """Who holds what, a line each; a long list ends with a count, and a line that is too long with dots."""
    shown = holdings[:_MAX_HOLDINGS]
    rows = [("pod", "profile", "device"), *((one.pod, one.profile, one.device) for one in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    title = "MIG UUID" if any(one.mig_uuid for one in shown) else ""
    lines: list[Text] = []
    for row, mig_uuid in zip(rows, [title, *(one.mig_uuid or "" for one in shown)], strict=True):
        style = "default" if lines else "dim"
        cells = [(text.ljust(width), style) for text, width in zip(row, widths, strict=True)]
        parts = [part for cell in cells for part in (("  ", ""), cell)]
        lines.append(Text.assemble(*parts, ("  ", ""), (mig_uuid, "dim")))
    if len(holdings) > _MAX_HOLDINGS:
        lines.append(Text(f"  and {len(holdings) - _MAX_HOLDINGS} more", style="dim"))
    table = Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
    table.no_wrap, table.overflow = True, "ellipsis"
    return table


def write_svg(path: Path, step: Step) -> None:
    """The map of `step` as a picture, and what the first of its pods holds. OSError."""
    console = Console(
        record=True, width=MAX_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", no_color=False
    )
    # UUIDs are new with each run; without them equal runs draw equal pictures.
    held = [replace(one, mig_uuid=None) for one in step.holdings[:1]]
    console.print(Group(render_mig_map(step.rows), Text(), render_holdings(held)))
    svg = console.export_svg(title="tesela demo", unique_id="tesela")
    # The picture must not fetch a font from the network: any monospaced one will do, positions are fixed.
    path.write_text(_FONT_FACE.sub("", svg), encoding="utf-8")


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
