"""`tesela demo --watch`: jobs come and go by chance, and the map follows, until Ctrl-C.

Drawn in place on a terminal; elsewhere the map is printed again whenever it changed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tesela.cli.demo_bridge import plan_job_profiles
from tesela.cli.demo_node import DemoNode, defer_interrupts
from tesela.cli.demo_screen import Screen
from tesela.cli.demo_steps import Story
from tesela.cli.mig_map import Detail, MapRow

_STEP_S: Final = 0.4
_SEED: Final = 1
_LINES_BESIDE_MAP: Final = 3


class Churn:
    """Which job comes or goes next, about `usual` at a time."""

    def __init__(self, profiles: Sequence[str], usual: int) -> None:
        self._profiles = profiles
        self._usual = max(usual, 1)
        # Chance keeps the picture alive; the seed makes two runs alike. Nothing secret depends on it.
        self._random = random.Random(_SEED)  # noqa: S311

    def comes(self, jobs: int) -> bool:
        """Whether the next change is a new job, with `jobs` there now."""
        return self._random.random() < 1 - jobs / (2 * self._usual)

    def profile(self) -> str:
        """What the new job asks for."""
        return self._random.choice(self._profiles)

    def goes(self, jobs: int) -> int:
        """Which of `jobs` ends."""
        return self._random.randrange(jobs)


def watch_jobs(story: Story, node: DemoNode, screen: Screen, usual: int) -> None:
    """Keeps about `usual` jobs coming and going until Ctrl-C, which ends it well."""
    churn, numbers = Churn(plan_job_profiles(gpu.model for gpu in node.spec.gpus), usual), count(1)
    with screen.live() as live:
        draw = _drawer(screen, live)
        try:
            while True:
                with defer_interrupts():
                    _change(story, churn, numbers.__next__)
                _follow(node, draw, _STEP_S)
        except KeyboardInterrupt:
            return


def _change(story: Story, churn: Churn, next_number: Callable[[], int]) -> None:
    jobs = story.pods.list_jobs()
    if churn.comes(len(jobs)) or not jobs:
        story.create_job(next_number(), churn.profile())
    else:
        story.pods.delete(jobs[churn.goes(len(jobs))])


def _follow(node: DemoNode, draw: Callable[[Sequence[MapRow]], None], duration_s: float) -> None:
    """Draws every change of the cluster for `duration_s`."""
    deadline, seen = time.monotonic() + duration_s, 0
    while (left_s := deadline - time.monotonic()) > 0:
        seen = node.cluster.wait_for_change(seen, min(left_s, 0.1))
        draw(node.map_rows())


def _drawer(screen: Screen, live: Live | None) -> Callable[[Sequence[MapRow]], None]:
    last: Sequence[MapRow] = ()

    def draw(rows: Sequence[MapRow]) -> None:
        nonlocal last
        if rows == last:
            return
        last = rows
        if live is None:
            screen.console.print(screen.render_map(rows))
            screen.console.print()
            return
        shown = screen.render_map(rows)
        if len(shown.split(allow_blank=True)) + _LINES_BESIDE_MAP > screen.console.height:
            shown = screen.render_map(rows, Detail.COMPACT)
        live.update(Group(shown, Text(), Text("  Ctrl-C ends it and frees everything", style="dim")), refresh=True)

    return draw
