"""The search: depth first over claims, their requests, and the devices of each request; the first solution wins.

Within a request, the next device is looked for after the one before it (combinations, not permutations). Alternatives
of a prioritized list are tried in order; the first that lets everything after it succeed is chosen. A branch that
would give a claim more than 32 devices is left at once, and so are the branches that only differ in which devices they
picked before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto

from tesela.core.allocator.attempt import Attempt
from tesela.core.allocator.plan import RESULTS_MAX, DemandPlan, Fitness
from tesela.core.allocator.pools import Pool, PoolDevice
from tesela.core.allocator.verdict import FatalError, UndecidedError


class _Found(Enum):
    YES = auto()
    NO = auto()
    TOO_MANY = auto()


class Search:
    """One search over `plans` (per claim, per request, per alternative) and the devices of usable pools."""

    def __init__(
        self,
        plans: Sequence[Sequence[Sequence[DemandPlan]]],
        pools: Sequence[Pool],
        attempt: Attempt,
        fitness: Fitness,
        max_steps: int,
    ) -> None:
        self.chosen: dict[tuple[int, int], DemandPlan] = {}
        self._plans = plans
        self._candidates = [(pool, entry) for pool in pools if pool.is_usable for entry in pool.devices]
        self._attempt = attempt
        self._fitness = fitness
        self._max_steps = max_steps
        self._steps = 0

    def run(self) -> bool:
        """Whether all claims got their devices; they are in the attempt then, the alternatives taken in `chosen`.

        `UndecidedError` when the steps run out: the scheduler might still find an answer, or time out.
        """
        found = self._search_request(0, 0)
        if found is _Found.TOO_MANY:
            raise FatalError("allocation max size exceeded")
        return found is _Found.YES

    def _search_request(self, claim_index: int, request_index: int) -> _Found:
        if claim_index >= len(self._plans):
            return _Found.YES
        requests = self._plans[claim_index]
        if request_index >= len(requests):
            found = self._search_request(claim_index + 1, 0)
            # Another choice for this claim may help the next one: it is no reason to leave this claim.
            return _Found.NO if found is _Found.TOO_MANY else found
        alternatives = requests[request_index]
        if not alternatives[0].demand.parent:
            self.chosen[claim_index, request_index] = alternatives[0]
            return self._search_device(claim_index, request_index, alternatives[0], 0, 0)
        all_too_many = True
        for plan in alternatives:
            found = self._search_device(claim_index, request_index, plan, 0, 0)
            if found is _Found.YES:
                self.chosen[claim_index, request_index] = plan
                return found
            all_too_many = all_too_many and found is _Found.TOO_MANY
        return _Found.TOO_MANY if all_too_many else _Found.NO

    def _search_device(self, claim_index: int, request_index: int, plan: DemandPlan, slot: int, start: int) -> _Found:
        self._step()
        if plan.wants_all and not plan.everything:
            return _Found.NO
        if slot >= plan.count:
            return self._search_request(claim_index, request_index + 1)
        if plan.count - slot > RESULTS_MAX - len(self._attempt.results[claim_index]):
            return _Found.TOO_MANY
        for position, pool, entry in self._candidates_for(claim_index, plan, slot, start):
            if self._attempt.take(claim_index, plan, pool, entry, must=plan.wants_all):
                found = self._search_device(claim_index, request_index, plan, slot + 1, position + 1)
                if found is _Found.YES:
                    return found
                self._attempt.give_back()
                if found is _Found.TOO_MANY:
                    return found
        return _Found.NO

    def _candidates_for(
        self, claim_index: int, plan: DemandPlan, slot: int, start: int
    ) -> Iterator[tuple[int, Pool, PoolDevice]]:
        """For All the one device whose turn it is, else what fits from `start` on, tested only when it is reached."""
        if plan.wants_all:
            yield slot, *plan.everything[slot]
            return
        for position in range(start, len(self._candidates)):
            pool, entry = self._candidates[position]
            if self._fits(claim_index, plan, entry):
                yield position, pool, entry

    def _fits(self, claim_index: int, plan: DemandPlan, entry: PoolDevice) -> bool:
        self._step()
        return (
            not self._attempt.is_in_use(claim_index, plan.demand, entry.device.id)
            and self._fitness.is_selectable(plan.claim, plan.demand, plan.device_class, entry)
            and self._attempt.has_room(plan.claim, plan.demand, entry)
        )

    def _step(self) -> None:
        self._steps += 1
        if self._steps > self._max_steps:
            raise UndecidedError(f"a search of more than {self._max_steps} steps")
