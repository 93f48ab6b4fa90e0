"""docs/upgrade.md says which versions of state files this release writes and reads, and has what messages point at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tesela.edge.documents import health, record, released, roster, sweep

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
ENVELOPES = {
    "claims/*.json": record,
    "roster.json": roster,
    "health.json": health,
    "released.json": released,
    "sweep.json": sweep,
}


def list_rows():
    for files, written, read in re.findall(r"^\| (.*\.json.*) \| (\d+) \| ([\d, ]+) \|$", PAGE, re.MULTILINE):
        yield from ((name, int(written), read) for name in re.findall(r"`([^`]+)`", files))


def test_the_versions_of_the_page_are_those_of_the_code():
    assert {name: (written, read) for name, written, read in list_rows()} == {
        name: (module._ENVELOPE._version, ", ".join(map(str, sorted(module._ENVELOPE._reads[1:]))))
        for name, module in ENVELOPES.items()
    }


def list_pointers():
    for path in (ROOT / "driver" / "tesela").rglob("*.py"):
        yield from re.findall(r"docs/upgrade\.md, ([A-Z][a-z ]+)", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("heading", sorted({heading.strip() for heading in list_pointers()}))
def test_a_message_points_at_a_heading(heading):
    assert f"\n## {heading}\n" in PAGE
