"""What each request needs before the search starts: its class, how many devices, and for All which ones.

The checks here are those that end the scheduler's whole cycle (`FatalError`), with its texts, in its order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from tesela.core.allocator.capacity import has_room, plan_consumption
from tesela.core.allocator.model import AllocationMode, Claim, Demand, DeviceClass, DeviceId, NodeInfo
from tesela.core.allocator.nodes import scope_matches
from tesela.core.allocator.pools import Pool, PoolDevice
from tesela.core.allocator.verdict import FatalError, UndecidedError
from tesela.core.quantity import Quantity
from tesela.core.selector import (
    CompileError,
    Match,
    NoMatch,
    SelectorDevice,
    SelectorRuntimeError,
    SelectorUndecided,
    evaluate_selector,
)

RESULTS_MAX = 32
"""AllocationResultsMaxSize: devices per claim."""

_NO_SUCH_KEY_ADVICE = (
    ". consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional"
    " fields"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandPlan:
    """A request or subrequest with its class; `everything` lists the devices that an All request must get."""

    claim: Claim
    demand: Demand
    device_class: DeviceClass
    count: int
    everything: tuple[tuple[Pool, PoolDevice], ...] = ()

    @property
    def wants_all(self) -> bool:
        """Whether it wants every matching device."""
        return self.demand.mode is AllocationMode.ALL


class Fitness:
    """Whether a device fits a request as such, whatever else is allocated; answers are kept for the attempt."""

    def __init__(self, node: NodeInfo) -> None:
        self._node = node
        self._selectable: dict[tuple[int, DeviceId], bool] = {}
        self._taken: dict[tuple[int, DeviceId], dict[str, Quantity] | None] = {}

    def is_selectable(self, claim: Claim, demand: Demand, device_class: DeviceClass, entry: PoolDevice) -> bool:
        """Selectors of the class, then of the request, then the device's own node selection."""
        key = (id(demand), entry.device.id)
        known = self._selectable.get(key)
        if known is None:
            known = (
                _selectors_match(f"class {device_class.name}", device_class.selectors, entry)
                and _selectors_match(f"claim {claim}", demand.selectors, entry)
                and (not entry.per_device or scope_matches(entry.scope, self._node))
            )
            self._selectable[key] = known
        return known

    def consumption(self, claim: Claim, demand: Demand, entry: PoolDevice) -> dict[str, Quantity] | None:
        """What the request takes of the device's capacities; None where it may not."""
        key = (id(demand), entry.device.id)
        if key not in self._taken:
            try:
                self._taken[key] = plan_consumption(demand.capacity, entry.device.capacity)
            except FatalError as error:
                where = f"claim {claim}, request {demand.name}: checking capacity for device {entry.device.id}"
                raise FatalError(f"{where}: {error}") from error
        return self._taken[key]


def plan_claims(
    claims: Sequence[Claim], classes: Mapping[str, DeviceClass], pools: Sequence[Pool], fitness: Fitness
) -> list[list[list[DemandPlan]]]:
    """Per claim, per request, the plan of each alternative. `FatalError` where the scheduler would give up at once."""
    return [_plan_claim(claim, classes, pools, fitness) for claim in claims]


def _plan_claim(
    claim: Claim, classes: Mapping[str, DeviceClass], pools: Sequence[Pool], fitness: Fitness
) -> list[list[DemandPlan]]:
    plans = []
    least = 0
    for request in claim.requests:
        alternatives = [_plan_demand(claim, demand, classes, pools, fitness) for demand in request.demands]
        count = min(plan.count for plan in alternatives)
        if count > RESULTS_MAX - least:
            raise FatalError(
                f"claim {claim}, request {request.name}: adding {count} devices exceeds the claim limit of"
                f" {RESULTS_MAX}, with {least} already accounted for"
            )
        least += count
        plans.append(alternatives)
    for index, constraint in enumerate(claim.constraints):
        if constraint.match_attribute is None and constraint.distinct_attribute is None:
            raise FatalError(f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)")
    return plans


def _plan_demand(
    claim: Claim, demand: Demand, classes: Mapping[str, DeviceClass], pools: Sequence[Pool], fitness: Fitness
) -> DemandPlan:
    where = f"claim {claim}, request {demand.name}"
    if demand.has_derived_attributes:
        raise FatalError(f"{where}: cannot handle request with derived attributes, the feature is disabled")
    for index, selector in enumerate(demand.selectors):
        if selector is None:
            raise FatalError(f"{where}, selector #{index}: CEL expression empty (unsupported selector type?)")
    if not demand.device_class:
        raise FatalError(f"{where}: missing device class name (unsupported request type?)")
    device_class = classes.get(demand.device_class)
    if device_class is None:
        raise FatalError(f"{where}: could not retrieve device class {demand.device_class}: it does not exist")
    match demand.mode:
        case AllocationMode.EXACT_COUNT:
            return DemandPlan(claim=claim, demand=demand, device_class=device_class, count=demand.count)
        case AllocationMode.ALL:
            everything = tuple(_all_devices(claim, demand, device_class, pools, fitness))
            return DemandPlan(
                claim=claim, demand=demand, device_class=device_class, count=len(everything), everything=everything
            )
        case AllocationMode.UNKNOWN:
            raise FatalError(f"{where}: unsupported count mode {demand.mode_text}")
        case _:
            assert_never(demand.mode)


def _all_devices(
    claim: Claim, demand: Demand, device_class: DeviceClass, pools: Sequence[Pool], fitness: Fitness
) -> list[tuple[Pool, PoolDevice]]:
    found = []
    for pool in pools:
        if not pool.is_usable:
            state = "being updated" if pool.is_incomplete else "invalid"
            raise FatalError(
                f"claim {claim}, request {demand.name}: asks for all devices, but resource pool {pool.id} is currently"
                f" {state}"
            )
        for entry in pool.devices:
            if not fitness.is_selectable(claim, demand, device_class, entry):
                continue
            # Only what the device could ever give: one that is full now stays listed, and All fails on it later.
            taken = fitness.consumption(claim, demand, entry)
            if taken is not None and has_room(taken, entry.device.capacity, {}, {}):
                found.append((pool, entry))
    return found


def _selectors_match(owner: str, selectors: Sequence[str | None], entry: PoolDevice) -> bool:
    device = SelectorDevice(
        driver=entry.device.id.driver,
        attributes=entry.device.attributes,
        capacity={name: capacity.value for name, capacity in entry.device.capacity.items()},
        allow_multiple=entry.device.allow_multiple,
    )
    for index, selector in enumerate(selectors):
        outcome = evaluate_selector(selector or "", device)
        match outcome:
            case Match():
                continue
            case NoMatch():
                return False
            case CompileError(text=text):
                raise FatalError(f"{owner}: selector #{index}: CEL compile error: {text}")
            case SelectorRuntimeError(text=text):
                advice = _NO_SUCH_KEY_ADVICE if "no such key:" in text else ""
                raise FatalError(
                    f"{owner}: selector #{index} on device {entry.device.id}: CEL runtime error: {text}{advice}"
                )
            case SelectorUndecided(what=what):
                raise UndecidedError(f"{owner}: selector #{index} uses {what}, which is not evaluated here")
            case _:
                assert_never(outcome)
    return True
