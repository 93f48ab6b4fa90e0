"""Which configurations go into an allocation: those of the classes used, then those of the claim that apply.

Each class is listed once, for all requests that use it; a claim's entry for particular requests is listed if one of
them was served; an entry that covers every request is written without requests, which means all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tesela.core.allocator.model import Claim
from tesela.core.allocator.plan import DemandPlan
from tesela.core.allocator.verdict import AllocationConfig


def merge_configs(claim: Claim, chosen: Sequence[DemandPlan]) -> tuple[AllocationConfig, ...]:
    """The configurations in the scheduler's order; `chosen` is the alternative taken per request."""
    names = [{plan.demand.parent or plan.demand.name, plan.demand.result_name} for plan in chosen]

    def simplified(requests: tuple[str, ...]) -> tuple[str, ...]:
        return () if all(own & set(requests) for own in names) else requests

    served = {name for own in names for name in own}
    users: dict[str, list[DemandPlan]] = {}
    for plan in chosen:
        users.setdefault(plan.device_class.name, []).append(plan)
    from_classes = [
        AllocationConfig(
            source="FromClass",
            requests=simplified(tuple(plan.demand.result_name for plan in plans)),
            config=config,
        )
        for plans in users.values()
        for config in plans[0].device_class.config
    ]
    from_claim = [
        AllocationConfig(source="FromClaim", requests=simplified(config.requests), config=config)
        for config in claim.config
        if not config.requests or served.intersection(config.requests)
    ]
    return (*from_classes, *from_claim)
