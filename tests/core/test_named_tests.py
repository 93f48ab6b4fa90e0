"""The tables that say which test shows what speak of tests that exist."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLES = [TESTS / "survive" / "README.md", TESTS.parent / "docs" / "reports.md"]
NAMED = re.compile(r"`(\w+/test_\w+)::(test_\w+|\*)`")
POINTS = 18
"""Of the list of what must be survived."""


def _list_named() -> list[tuple[str, str]]:
    return sorted({(file, name) for table in TABLES for file, name in NAMED.findall(table.read_text())})


def _list_tests(file: str) -> set[str]:
    tree = ast.parse((TESTS / f"{file}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def _list_rows(table: Path) -> list[str]:
    """The rows without their heads, below which stands a line of dashes."""
    lines = [line for line in table.read_text().splitlines() if line.startswith("|")]
    return [line for line, below in itertools.pairwise([*lines, ""]) if "|---" not in line + below]


@pytest.mark.parametrize(("file", "name"), _list_named(), ids=str)
def test_a_test_that_a_table_names_exists(file: str, name: str):
    assert _list_tests(file) if name == "*" else name in _list_tests(file)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_of_a_table_names_a_test(table: Path):
    assert [row for row in _list_rows(table) if not NAMED.search(row)] == []


def test_every_point_that_must_be_survived_has_a_row():
    assert len(_list_rows(TABLES[0])) == POINTS


def test_every_file_of_the_folder_is_in_its_table():
    named = {file.removeprefix("survive/") for file, _ in _list_named() if file.startswith("survive/")}

    assert named == {path.stem for path in (TESTS / "survive").glob("test_*.py")}
