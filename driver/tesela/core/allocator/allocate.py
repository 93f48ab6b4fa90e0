"""`allocate`: the scheduler's decision for one node, from plan over search to the answer with its configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tesela.core.allocator.attempt import Attempt
from tesela.core.allocator.config import merge_configs
from tesela.core.allocator.model import AllocatedState, Claim, DeviceClass, NodeInfo, Slice
from tesela.core.allocator.nodes import results_node_selector
from tesela.core.allocator.plan import Fitness, plan_claims
from tesela.core.allocator.pools import Pool, gather_pools
from tesela.core.allocator.search import Search
from tesela.core.allocator.verdict import (
    Allocated,
    ClaimAllocation,
    Fatal,
    FatalError,
    Unallocatable,
    Undecided,
    UndecidedError,
    Verdict,
)

MAX_STEPS = 500_000
"""Seconds here; the scheduler gives up on a node after ten seconds."""


def allocate(
    claims: Sequence[Claim],
    classes: Mapping[str, DeviceClass],
    slices: Sequence[Slice],
    node: NodeInfo,
    allocated: AllocatedState,
    max_steps: int = MAX_STEPS,
) -> Verdict:
    """Which devices the unallocated `claims` of one pod get on `node`, all of them or none.

    `slices` are all of the cluster (with DeviceTaintRules applied), `allocated` what all claims of the cluster hold.
    The same input always gives the same answer. A request of neither kind is `Unallocatable`. `Undecided` when a
    selector uses a function that is missing here or the search takes more than `max_steps` steps.
    """
    unknown = next((request.name for claim in claims for request in claim.requests if not request.demands), None)
    if unknown is not None:
        return Unallocatable(reason=f"request {unknown}: unknown request type")
    pools = gather_pools(slices, node)
    try:
        answer = _search(claims, classes, pools, node, allocated, max_steps)
    except FatalError as error:
        return Fatal(message=str(error))
    except UndecidedError as error:
        return Undecided(what=str(error))
    except RecursionError:
        return Undecided(what="more devices in one pod than the search can nest")
    if isinstance(answer, Unallocatable) and any(pool.invalid_reason is not None for pool in pools):
        return Unallocatable(reason="invalid resource pools were encountered")
    return answer


def _search(
    claims: Sequence[Claim],
    classes: Mapping[str, DeviceClass],
    pools: Sequence[Pool],
    node: NodeInfo,
    allocated: AllocatedState,
    max_steps: int,
) -> Allocated | Unallocatable:
    fitness = Fitness(node)
    attempt = Attempt(claims, allocated, fitness)
    search = Search(plan_claims(claims, classes, pools, fitness), pools, attempt, fitness, max_steps)
    if not search.run():
        return Unallocatable(reason="cannot allocate all claims")
    return _answer(claims, attempt, search, node)


def _answer(claims: Sequence[Claim], attempt: Attempt, search: Search, node: NodeInfo) -> Allocated:
    return Allocated(
        claims=tuple(
            ClaimAllocation(
                results=tuple(results),
                config=merge_configs(claim, [search.chosen[index, i] for i in range(len(claim.requests))]),
                node_selector=results_node_selector(results, node),
            )
            for index, (claim, results) in enumerate(zip(claims, attempt.results, strict=True))
        )
    )
