"""Two verdicts made comparable, and how often a run exercised what."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

_CEL = re.compile(r"(?P<where>.*CEL (?:compile|runtime) error: )(?P<text>.*)")
_NO_SUCH_KEY = re.compile(r"no such key: \S+")


def comparable(verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict without what may differ: random share IDs, the CEL runtime's own words, where a search is left."""
    verdict = {key: value for key, value in copy.deepcopy(verdict).items() if value}
    if _gave_up(verdict):
        return {"gaveUp": True}
    for allocation in verdict.get("allocations", ()):
        for result in allocation["devices"].get("results") or ():
            if "shareID" in result:
                result["shareID"] = "some"
    if "error" in verdict:
        verdict["error"] = _comparable_error(verdict["error"])
    return verdict


def _gave_up(verdict: dict[str, Any]) -> bool:
    """The search has no end in sight: ours stops after a number of steps, the genuine one after a time."""
    return "a search of more than" in verdict.get("undecided", "") or "deadline exceeded" in verdict.get("error", "")


def _comparable_error(text: str) -> str:
    match = _CEL.match(text)
    if match is None:
        # Which capacity of several is named first depends on Go's map order.
        return re.sub(r'capacity "[^"]*".*', "capacity", text)
    missing = _NO_SUCH_KEY.search(match["text"])
    return match["where"] + (missing[0] if missing else "")


def differences(
    worlds: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> list[str]:
    """One text per world on which the two disagree: its name, features and both verdicts."""
    return [
        f"world {world['name']} ({', '.join(world['features'])})\n  ours:   {mine}\n  theirs: {other}"
        for world, mine, other in zip(worlds, map(comparable, ours), map(comparable, theirs), strict=True)
        if mine != other
    ]


def outcome(verdict: dict[str, Any]) -> str:
    """The verdict's kind."""
    return next((kind for kind in ("allocations", "failedOnNode", "error", "undecided") if verdict.get(kind)), "none")


def shares(names: Iterable[str], total: int) -> dict[str, float]:
    """How large a part of `total` each name has, largest first."""
    return {name: count / total for name, count in Counter(names).most_common()}
