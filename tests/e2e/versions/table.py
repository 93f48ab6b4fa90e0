"""The README's table of features by release of Kubernetes, rendered from docs/versions.json; nothing is run.

python -m e2e.versions.table            writes it between the two marks in README.md
python -m e2e.versions.table --check    exit code 1 where it differs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "versions.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- from docs/versions.json -->", "<!-- end -->"


def read_results() -> dict[str, Any]:
    """What the last runs saw; nothing before the first. `features` are the rows, `releases` the columns.

    A run of a release has, by feature, what was seen instead, or the empty text where it works.
    """
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return results


def write_results(results: Mapping[str, Any]) -> None:
    """Puts them in place."""
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def render_table(results: Mapping[str, Any]) -> str:
    """Rows of Markdown: yes, a gate to open, or no."""
    releases: Mapping[str, Any] = results["releases"]
    rows = [
        ["Kubernetes", *(one["release"].removeprefix("v") for one in releases.values())],
        ["---"] * (len(releases) + 1),
        *(
            [feature["says"], *(_render_cell(name, feature, runs) for runs in releases.values())]
            for name, feature in results["features"].items()
        ),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _render_cell(name: str, feature: Mapping[str, str], runs: Mapping[str, Any]) -> str:
    if runs["default"].get(name, "-") == "":
        return "yes"
    return f"gate {feature['gate']}" if runs.get("open", {}).get(name, "-") == "" else "**no**"


def put_table(text: str, table: str) -> str:
    """`text` with the table between its two marks. ValueError where they are not there."""
    return "".join(_replace(text, table))


def _replace(text: str, table: str) -> Iterator[str]:
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no lines {BEGIN} and {END} for the table of features by release")
    yield from (head, begin, "\n", table, end, tail)


def main(arguments: list[str]) -> int:
    """Writes the table, or looks whether it is as it should be."""
    before = README.read_text(encoding="utf-8")
    after = put_table(before, render_table(read_results()))
    if arguments == ["--check"]:
        if after != before:
            sys.stderr.write("README.md: its table of features by release is not that of docs/versions.json: ")
            sys.stderr.write("run `PYTHONPATH=tests python -m e2e.versions.table`\n")
        return int(after != before)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
