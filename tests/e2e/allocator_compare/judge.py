"""Our allocator's verdict on a world, in the same shape as the genuine one's.

`python -m e2e.allocator_compare.judge` reads worlds as JSON lines and writes verdicts as JSON lines: the tests run it
on copies of the allocator with a fault planted.
"""

from __future__ import annotations

import json
import sys
from typing import Any, assert_never

from tesela.core.allocator import (
    Allocated,
    Fatal,
    Unallocatable,
    Undecided,
    allocate,
    parse_allocated,
    parse_claim,
    parse_class,
    parse_node,
    parse_slices,
    render_allocation,
)

MAX_STEPS = 50_000
"""Enough for nearly every world; the others are left out of the comparison."""


def judge(world: dict[str, Any]) -> dict[str, Any]:
    """`allocations`, `failedOnNode`, `error` or `undecided`; empty if the claims cannot be allocated."""
    classes = [parse_class(document) for document in world["classes"]]
    verdict = allocate(
        [parse_claim(document) for document in world["claims"]],
        {device_class.name: device_class for device_class in classes},
        parse_slices(world["slices"]),
        parse_node(world["node"]),
        parse_allocated(world["allocatedClaims"]),
        max_steps=MAX_STEPS,
    )
    match verdict:
        case Allocated(claims=allocations):
            return {"allocations": [render_allocation(allocation) for allocation in allocations]}
        case Unallocatable(reason="cannot allocate all claims"):
            return {}
        case Unallocatable(reason=reason):
            return {"failedOnNode": reason}
        case Fatal(message=message):
            return {"error": message}
        case Undecided(what=what):
            return {"undecided": what}
        case _:
            assert_never(verdict)


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(judge(json.loads(line))) + "\n")
