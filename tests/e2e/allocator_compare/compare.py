"""Two verdicts made comparable, and how often a run exercised what."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_CEL = re.compile(r"(?P<where>.*CEL (?:compile|runtime) error: )(?P<text>.*)")
_NO_SUCH_KEY = re.compile(r"no such key: \S+")


def comparable(verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict without what may differ: random share IDs and the CEL runtime's own words."""
    verdict = {key: value for key, value in copy.deepcopy(verdict).items() if value}
    for allocation in verdict.get("allocations", ()):
        for result in allocation["devices"].get("results") or ():
            if "shareID" in result:
                result["shareID"] = "some"
    if "error" in verdict:
        verdict["error"] = _comparable_error(verdict["error"])
    return verdict


def gave_up(verdict: dict[str, Any]) -> bool:
    """The search had no end in sight: ours stops after a number of steps, the genuine one after a time."""
    return "a search of more than" in verdict.get("undecided", "") or "deadline exceeded" in verdict.get("error", "")


def _comparable_error(text: str) -> str:
    match = _CEL.match(text)
    if match is None:
        # Which capacity of several is named first depends on Go's map order.
        return re.sub(r'capacity "[^"]*".*', "capacity", text)
    missing = _NO_SUCH_KEY.search(match["text"])
    return match["where"] + (missing[0] if missing else "")


@dataclass(frozen=True)
class Comparison:
    """How two lists of verdicts compare: worlds on which they agree, texts on the others, worlds that one gave up."""

    agree: int
    differences: list[str]
    left_out: int


def compare(
    worlds: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> Comparison:
    """Compares verdict by verdict; a world whose search either side gave up tells nothing and is left out."""
    pairs = [
        (world, comparable(mine), comparable(other))
        for world, mine, other in zip(worlds, ours, theirs, strict=True)
        if not gave_up(mine) and not gave_up(other)
    ]
    differences = [
        f"world {world['name']} ({', '.join(world['features'])})\n  ours:   {mine}\n  theirs: {other}"
        for world, mine, other in pairs
        if mine != other
    ]
    return Comparison(agree=len(pairs) - len(differences), differences=differences, left_out=len(worlds) - len(pairs))


def outcome(verdict: dict[str, Any]) -> str:
    """The verdict's kind."""
    return next((kind for kind in ("allocations", "failedOnNode", "error", "undecided") if verdict.get(kind)), "none")


def shares(names: Iterable[str], total: int) -> dict[str, float]:
    """How large a part of `total` each name has, largest first."""
    return {name: count / total for name, count in Counter(names).most_common()}
