"""docs/health.md shows the table that the code has."""

from __future__ import annotations

from pathlib import Path

from tesela.cli.health_signals import describe_threshold
from tesela.core.health.model import HealthState
from tesela.core.health.signals import DEFAULT_TABLE
from tesela.edge.documents.policy import decode_policy

PAGE = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
COLUMNS = {"xid": 4, "other": 7}
ROWS = {
    line.split("`")[1]: line
    for line in PAGE.splitlines()
    if line.startswith("| `") and line.count("|") - 1 == COLUMNS["xid" if line.startswith("| `xid-") else "other"]
}


def _render(row):
    """Xids count from the first one on, and their taints follow from their numbers."""
    name, taint = f"`{row.name}`", f"`{row.key}={row.value}`"
    if row.key == "xid":
        assert (row.threshold, taint) == (1, f"`xid={row.name[4:]}`")
        return f"| {name} | {row.state} | {row.evidence} | {row.meaning} |"
    cells = (name, row.state, describe_threshold(row), row.evidence, taint, row.meaning, row.source)
    return f"| {' | '.join(cells)} |"


def test_every_signal_that_condemns_has_its_row():
    condemning = {row.name: row for row in DEFAULT_TABLE.values() if row.state is not HealthState.HEALTHY}

    assert {name: _render(row) for name, row in condemning.items()} == ROWS


def test_the_xids_that_are_only_counted_are_listed():
    harmless = sorted(int(row.name[4:]) for row in DEFAULT_TABLE.values() if row.state is HealthState.HEALTHY)

    assert f"{', '.join(map(str, harmless))}." in " ".join(PAGE.split())


def test_every_taint_key_is_named():
    assert [row.key for row in DEFAULT_TABLE.values() if f"`{row.key}`" not in PAGE] == []


def test_the_example_of_a_policy_is_one():
    example = PAGE.split("```yaml\n")[1].split("```")[0]

    assert decode_policy(example).health.find("xid-94") is not None
