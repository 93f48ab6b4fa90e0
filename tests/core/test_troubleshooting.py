"""docs/troubleshooting.md is found by the words of a message: each that it quotes is one that the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
OURS, _, THEIRS = PAGE.partition("## What Kubernetes says")
HEADINGS = [line for line in OURS.splitlines() if line.startswith("### ")]
QUOTED = [text for line in HEADINGS for text in re.findall(r"`([^`]+)`", line)]
ANYTHING = "…"


def _read_texts():
    """Every text of the driver's code, with `…` for what it puts in."""
    for path in sorted((ROOT / "driver/tesela").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [one.value if isinstance(one, ast.Constant) else ANYTHING for one in node.values]
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%(\.\d+f|[sdgr])", ANYTHING, node.value)


TEXTS = "\n".join(sorted(set(_read_texts())))


def test_the_page_quotes_messages():
    assert len(QUOTED) > 30


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_in_the_code(quoted):
    said = ".*?".join(re.escape(part.strip()) for part in quoted.split(ANYTHING) if part.strip())

    assert re.search(said, TEXTS), quoted


@pytest.mark.parametrize("line", [line for line in PAGE.splitlines() if line.startswith("### ")])
def test_each_message_has_an_answer(line):
    below = PAGE.partition(f"{line}\n")[2].splitlines()

    assert below
    assert not below[0].startswith("#")
