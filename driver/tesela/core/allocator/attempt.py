"""The state of one attempt: which devices the claims have so far, with everything that must be undone to try others.

Devices are given back in the reverse order of being taken, so a stack holds all there is to undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

from tesela.core.allocator.capacity import has_room
from tesela.core.allocator.constraints import ConstraintStack
from tesela.core.allocator.counters import Counters
from tesela.core.allocator.model import AllocatedState, Claim, Demand, DeviceId
from tesela.core.allocator.plan import DemandPlan, Fitness
from tesela.core.allocator.pools import Pool, PoolDevice
from tesela.core.allocator.taints import taints_prevent
from tesela.core.allocator.verdict import DeviceResult, FatalError
from tesela.core.quantity import ZERO, Quantity

_SHARES = UUID("5f0a4d5e-6c0d-5b3f-9a57-0f7d9d3f9e1a")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    claim_index: int
    demand: Demand
    pool: Pool
    entry: PoolDevice
    is_charged: bool


class Attempt:
    """What the claims hold so far in this attempt. `results` is per claim, in the order taken."""

    def __init__(self, claims: Sequence[Claim], allocated: AllocatedState, fitness: Fitness) -> None:
        self.results: list[list[DeviceResult]] = [[] for _ in claims]
        self._claims = claims
        self._allocated = allocated
        self._fitness = fitness
        self._counters = Counters(allocated)
        self._constraints = [[ConstraintStack(constraint) for constraint in claim.constraints] for claim in claims]
        self._holders: dict[DeviceId, list[int]] = {}
        self._shares: dict[DeviceId, list[dict[str, Quantity]]] = {}
        self._stack: list[_Taken] = []

    def is_in_use(self, claim_index: int, demand: Demand, device: DeviceId) -> bool:
        """Whether somebody has the device whole; for admin access only the claim itself counts."""
        if demand.admin_access:
            return claim_index in self._holders.get(device, ())
        return device in self._allocated.dedicated or bool(self._holders.get(device))

    def has_room(self, claim: Claim, demand: Demand, entry: PoolDevice) -> bool:
        """Whether the device's capacities still allow what the request takes of them."""
        taken = self._fitness.consumption(claim, demand, entry)
        if taken is None:
            return False
        device = entry.device
        in_use = self._allocated.consumed.get(device.id, {})
        return has_room(taken, device.capacity, in_use, _total(self._shares.get(device.id, ())))

    def take(self, claim_index: int, plan: DemandPlan, pool: Pool, entry: PoolDevice, *, must: bool) -> bool:
        """Gives the device to the request if counters, taints, constraints and capacity allow.

        `must`: the request wants exactly this device, so a constraint that refuses it is a `FatalError`.
        """
        device, demand, claim = entry.device, plan.demand, plan.claim
        if self.is_in_use(claim_index, demand, device.id):
            return False
        if taints_prevent(device, demand):
            return False
        needs_counters = bool(device.consumes) and not (device.allow_multiple and self._has_shares(device.id))
        if needs_counters and not self._counters.charge(pool, device):
            return False
        taken = _Taken(claim_index=claim_index, demand=demand, pool=pool, entry=entry, is_charged=needs_counters)
        if not self._push_constraints(taken):
            self._refund(taken)
            if must:
                raise FatalError(
                    f"claim {claim}, request {demand.name}: cannot add device {device.id} because a claim constraint"
                    " would not be satisfied"
                )
            return False
        if not self.has_room(claim, demand, entry):
            self._pop_constraints(taken, len(self._constraints[claim_index]))
            self._refund(taken)
            return False
        self._record(taken, claim)
        return True

    def give_back(self) -> None:
        """Undoes the last `take` that succeeded."""
        taken = self._stack.pop()
        device = taken.entry.device
        self.results[taken.claim_index].pop()
        if device.allow_multiple:
            self._shares[device.id].pop()
        else:
            self._holders[device.id].remove(taken.claim_index)
        self._pop_constraints(taken, len(self._constraints[taken.claim_index]))
        self._refund(taken)

    def _record(self, taken: _Taken, claim: Claim) -> None:
        device, demand = taken.entry.device, taken.demand
        results = self.results[taken.claim_index]
        share_id, consumed = None, None
        if device.allow_multiple:
            consumed = self._fitness.consumption(claim, demand, taken.entry) or {}
            self._shares.setdefault(device.id, []).append(consumed)
            share_id = str(uuid5(_SHARES, f"{claim.uid or claim}/{len(results)}/{device.id}"))
        else:
            self._holders.setdefault(device.id, []).append(taken.claim_index)
        results.append(
            DeviceResult(
                request=demand.result_name,
                device=device,
                scope=taken.entry.scope,
                admin_access=demand.admin_access,
                share_id=share_id,
                consumed=consumed or None,
                tolerations=demand.tolerations,
            )
        )
        self._stack.append(taken)

    def _has_shares(self, device: DeviceId) -> bool:
        return self._allocated.holds_share(device) or bool(self._shares.get(device))

    def _push_constraints(self, taken: _Taken) -> bool:
        for index, constraint in enumerate(self._constraints[taken.claim_index]):
            if not constraint.push(taken.demand, taken.entry.device):
                self._pop_constraints(taken, index)
                return False
        return True

    def _pop_constraints(self, taken: _Taken, count: int) -> None:
        for constraint in self._constraints[taken.claim_index][:count]:
            constraint.pop(taken.demand)

    def _refund(self, taken: _Taken) -> None:
        if taken.is_charged:
            self._counters.refund(taken.pool, taken.entry.device)


def _total(shares: Sequence[dict[str, Quantity]]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for share in shares:
        for name, quantity in share.items():
            total[name] = total.get(name, ZERO) + quantity
    return total
