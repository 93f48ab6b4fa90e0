"""Figures beside their budgets: how they are summed up, printed and written. Pure but for `write_figures`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. `nvml_latency_ms` is what the simulator was told to add to each NVML call.

    `budget` is None for a figure that only explains others; `at_least` says on which side of it the value has to be.
    """

    name: str
    value: float
    unit: str
    budget: float | None = None
    at_least: bool = False
    nvml_latency_ms: float = 0.0

    @property
    def within(self) -> bool | None:
        """Whether the budget is kept; None without one."""
        if self.budget is None:
            return None
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    @property
    def bound(self) -> str:
        """The budget as a reader writes it."""
        return "" if self.budget is None else f"{'>=' if self.at_least else '<='} {self.budget:g}"


def find_percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of 100 of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def find_median(rounds: Sequence[Sequence[float]], statistic: Callable[[Sequence[float]], float]) -> float:
    """The median over repeated rounds of one statistic of a round: a busy moment spoils one round, not the figure."""
    return statistics.median(statistic(one) for one in rounds)


def render_line(figure: Figure) -> str:
    """One line of the table."""
    mark = {True: "within", False: "MISSED", None: ""}[figure.within]
    columns = (
        f"{figure.name:<58}",
        f"{figure.value:>8.2f} {figure.unit:<9}",
        f"{figure.bound:>8}",
        f"{figure.nvml_latency_ms:>5g} ms",
        mark,
    )
    return "  ".join(columns).rstrip()


def render_header() -> str:
    """The table's first line."""
    return f"{'figure':<58}  {'value':>8} {'unit':<9}  {'budget':>8}  {'NVML +':>8}"


def render_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """The entries of bench.json."""
    return [{**asdict(figure), "within": figure.within} for figure in figures]


def write_figures(path: Path, figures: Sequence[Figure]) -> None:
    """Writes bench.json."""
    path.write_text(json.dumps(render_json(figures), indent=1) + "\n")
