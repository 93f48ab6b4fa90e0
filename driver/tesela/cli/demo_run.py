"""Joins the demo's parts: the node, the story told on it, the screen, the picture, and a quiet log.

Order only; what a step does is in `demo_steps`, what it looks like in `demo_screen`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tesela.cli.demo_node import DemoNode
from tesela.cli.demo_screen import Screen, open_screen, write_svg
from tesela.cli.demo_steps import STEPS, Step, Story
from tesela.cli.demo_watch import watch_jobs
from tesela.cli.mig_map import MapRow
from tesela.core.errors import StartError, TeselaError
from tesela.edge.simulator.spec import MachineSpec

_KEPT_WARNINGS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What was asked for on the command line. `claims` beside the bridge; `svg` is a file to draw into."""

    claims: int
    watch: bool
    json: bool
    svg: Path | None
    colour: bool
    verbose: bool

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> DemoOptions:
        return cls(
            claims=args.claims,
            watch=args.watch,
            json=args.output == "json",
            svg=args.svg,
            colour=not args.no_color,
            verbose=args.verbose,
        )


def run_demo(options: DemoOptions, spec: MachineSpec) -> int:
    """The whole demo on `spec`. Raises what a step raised, after everything was stopped and removed."""
    if options.svg is not None and not options.svg.parent.is_dir():
        raise StartError(f"--svg {options.svg}: folder {options.svg.parent} is not there; create it first")
    with _log(verbose=options.verbose):
        steps = _tell_as_json(options, spec) if options.json else _tell(options, spec)
        if options.json:
            json.dump([render_step(step) for step in steps], sys.stdout, indent=2)
            print()
    return 0


def _tell(options: DemoOptions, spec: MachineSpec) -> list[Step]:
    """Shows every step as it is done."""
    with open_screen(colour=options.colour) as screen, DemoNode(spec) as node:
        story, steps = Story(node), _Teller(screen)
        steps.tell(story.begin())
        if options.watch:
            watch_jobs(story, node, screen, options.claims)
            steps.announce("free")
        else:
            steps.tell(story.run_jobs(options.claims))
        _draw(options, steps.told)
        steps.tell(story.end())
    return steps.told


def _tell_as_json(options: DemoOptions, spec: MachineSpec) -> list[Step]:
    with DemoNode(spec) as node:
        story = Story(node)
        steps = [*story.begin(), *story.run_jobs(options.claims), *story.end()]
    _draw(options, steps)
    return steps


class _Teller:
    """Shows steps on a screen, each announced before it begins."""

    def __init__(self, screen: Screen) -> None:
        self.told: list[Step] = []
        self._screen = screen
        self._names = list(STEPS)
        self.announce(self._names[0])

    def announce(self, name: str) -> None:
        self._screen.announce(STEPS[name], self._names.index(name), len(STEPS))

    def tell(self, steps: Iterator[Step]) -> None:
        for step in steps:
            self.told.append(step)
            self._screen.show(step)
            if step.name != self._names[-1]:
                self.announce(self._names[self._names.index(step.name) + 1])


def _draw(options: DemoOptions, steps: list[Step]) -> None:
    busiest = next((step for step in reversed(steps) if step.holdings), None)
    if options.svg is not None and busiest is not None:
        try:
            write_svg(options.svg, busiest)
        except OSError as error:
            raise StartError(f"--svg {options.svg}: cannot be written: {error.strerror}") from error


def render_step(step: Step) -> dict[str, Any]:
    """A step for machines: its name, sentence and seconds, its facts, and the map where it has one."""
    document = {"step": step.name, "sentence": step.sentence, "took_s": round(step.took_s, 4), **step.facts}
    return document | ({"map": [_render_row(row) for row in step.rows]} if step.rows else {})


def _render_row(row: MapRow) -> dict[str, Any]:
    return {
        "gpu": row.name,
        "mig": row.mig,
        "memory_slices": row.memory_slices,
        "free_slices": row.free_slices,
        "whole_holder": row.whole_holder,
        "blocks": [
            {
                "start": block.placement.start,
                "size": block.placement.size,
                "profile": block.profile,
                "holder": block.holder,
            }
            for block in row.blocks
        ],
    }


class _Keeper(logging.Handler):
    """Keeps the last warnings, to be shown if the demo fails."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=_KEPT_WARNINGS)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def _log(*, verbose: bool) -> Iterator[None]:
    """The driver's log: on stderr where asked for; else only its last warnings, and only when the demo fails."""
    logger = logging.getLogger("tesela")
    keeper = _Keeper()
    handler = logging.StreamHandler(sys.stderr) if verbose else keeper
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False
    try:
        yield
    except TeselaError:
        print(*keeper.lines, sep="\n", end="\n" if keeper.lines else "", file=sys.stderr)
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
