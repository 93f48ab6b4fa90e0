"""The scheduler's structured allocator as a pure function: which devices a set of claims gets on one node.

`parse_*` turn API JSON into the nouns of `model`, `allocate` decides, `render_allocation` writes the answer as
`status.allocation`. It follows the variant that Kubernetes 1.37 uses by default (`structured/internal/incubating` of
k8s.io/dynamic-resource-allocation), and `tests/e2e/allocator_compare` holds it equal to the genuine one. What may not
go here: reading or writing the API, choosing nodes, clocks and random numbers.
"""

from __future__ import annotations

from tesela.core.allocator.allocate import allocate
from tesela.core.allocator.model import (
    AllocatedState,
    Claim,
    DeviceClass,
    DeviceId,
    NodeInfo,
    Slice,
)
from tesela.core.allocator.parse import parse_allocated, parse_claim, parse_class, parse_node, parse_slices
from tesela.core.allocator.render import render_allocation
from tesela.core.allocator.taints import apply_taint_rules
from tesela.core.allocator.verdict import (
    Allocated,
    ClaimAllocation,
    DeviceResult,
    Fatal,
    Unallocatable,
    Undecided,
    Verdict,
)

__all__ = [
    "Allocated",
    "AllocatedState",
    "Claim",
    "ClaimAllocation",
    "DeviceClass",
    "DeviceId",
    "DeviceResult",
    "Fatal",
    "NodeInfo",
    "Slice",
    "Unallocatable",
    "Undecided",
    "Verdict",
    "allocate",
    "apply_taint_rules",
    "parse_allocated",
    "parse_claim",
    "parse_class",
    "parse_node",
    "parse_slices",
    "render_allocation",
]
