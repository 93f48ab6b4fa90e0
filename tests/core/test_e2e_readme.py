"""The table in tests/e2e/README.md speaks of tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
README = TESTS / "e2e" / "README.md"
ROW = re.compile(r"\| (?P<numbers>[NKX]\d[-\w, ]*) \| (?P<scenario>.+) \| (?P<covered>.+) \|")
NAMED = re.compile(r"`((?:\w+/)?test_\w+)`|…([a-z_]+)")
COUNTS = {"N": 38, "K": 55, "X": 16}


def _list_rows() -> list[re.Match[str]]:
    return [row for line in README.read_text().splitlines() if (row := ROW.fullmatch(line))]


def _list_named() -> Iterator[tuple[str, str]]:
    """File and part of a test's name, as every row names them."""
    for row in _list_rows():
        file = ""
        for found in NAMED.finditer(row["covered"]):
            file = found[1] or file
            if found[2]:
                yield file, found[2]


def _list_tests(file: str) -> list[str]:
    folder, _, module = file.rpartition("/")
    tree = ast.parse((TESTS / (folder or "e2e") / f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _expand(numbers: str) -> Iterator[str]:
    """N01, N05-N07 as N01, N05, N06, N07."""
    for part in numbers.split(", "):
        first, _, last = part.partition("-")
        for number in range(int(first[1:]), int((last or first)[1:]) + 1):
            yield f"{first[0]}{number:02}"


def test_every_scenario_has_a_row():
    listed = sorted(number for row in _list_rows() for number in _expand(row["numbers"]))

    assert listed == sorted(f"{kind}{number:02}" for kind, count in COUNTS.items() for number in range(1, count + 1))


@pytest.mark.parametrize(("file", "part"), sorted(set(_list_named())))
def test_a_test_that_covers_a_scenario_exists(file: str, part: str):
    assert [name for name in _list_tests(file) if part in name]


def test_every_end_to_end_file_is_in_the_table_of_files():
    listed = set(re.findall(r"^\| `(test_\w+\.py)` \|", README.read_text(), re.MULTILINE))

    assert listed == {path.name for path in README.parent.glob("test_*.py")}
