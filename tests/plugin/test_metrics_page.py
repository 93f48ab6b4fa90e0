"""docs/observability.md is what operators build dashboards on: it lists what there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tesela.edge.telemetry.catalogue import METRICS
from tesela.edge.telemetry.logs import LEVELS
from tesela.edge.telemetry.outcome import CAUSES
from tesela.edge.telemetry.port import Phase, Result
from tesela.edge.telemetry.work import Verb

PAGE = (Path(__file__).parents[2] / "docs/observability.md").read_text()


def rows():
    """Name, type and labels of each metric in the page's tables."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `tesela_"):
            yield cells[0].strip("` |"), cells[1].strip(" |"), tuple(re.findall(r"`(\w+)`", cells[2]))


def test_the_page_lists_the_metrics_of_the_code():
    assert sorted(rows()) == sorted((metric.name, str(metric.kind), metric.labels) for metric in METRICS)


def test_the_page_names_every_phase_in_order():
    listed = PAGE.partition("Phases, in their order:")[2].partition("A phase may")[0]

    assert re.findall(r"`(\w+)`", listed) == list(Phase)


def test_the_page_names_every_cause():
    listed = PAGE.partition("Causes of failures:")[2].partition("The sentence itself")[0]

    assert re.findall(r"`(\w+)`", listed) == list(CAUSES)


def test_the_page_names_every_verb_result_and_level():
    words = set(re.findall(r"`(\w+)`", PAGE))

    assert {*Verb, *Result, *LEVELS} <= words
