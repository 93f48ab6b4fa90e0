"""The README's table of features by release of Kubernetes is that of the runs, and says what they saw."""

from __future__ import annotations

import pytest
from e2e.versions.table import README, put_table, read_results, render_table

ROWS = {
    "features": {"one": {"says": "one thing", "gate": "SomeGate"}},
    "releases": {"1.34": {"release": "v1.34.4", "default": {"one": "not there"}, "open": {"one": ""}}},
}


def test_the_readme_shows_what_the_last_runs_saw():
    text = README.read_text(encoding="utf-8")

    assert put_table(text, render_table(read_results())) == text


@pytest.mark.parametrize(
    ("default", "opened", "cell"),
    [("", {"one": ""}, "yes"), ("seen", {"one": ""}, "gate SomeGate"), ("seen", {"one": "seen"}, "**no**")],
)
def test_a_cell_says_yes_or_which_gate_or_no(default, opened, cell):
    release = {"release": "v1.34.4", "default": {"one": default}, "open": opened}
    table = render_table({**ROWS, "releases": {"1.34": release}})

    assert table.splitlines() == ["| Kubernetes | 1.34.4 |", "| --- | --- |", f"| one thing | {cell} |"]


def test_a_release_that_was_not_tried_for_a_feature_is_not_said_to_have_it():
    release = {"release": "v1.34.4", "default": {}}

    assert "**no**" in render_table({**ROWS, "releases": {"1.34": release}})


def test_a_readme_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="no lines"):
        put_table("# Tesela\n", render_table(ROWS))
