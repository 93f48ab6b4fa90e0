"""The scheduler of a chaos run: which device of which GPU is free. It never gives a memory slice twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tesela.core.naming import render_partition_name
from tesela.core.roster import Roster

WHOLE_IN = 12
"""One claim in so many wants a whole GPU, where the MIG mode follows the claim."""
WAIT_S = 300.0


@dataclass(frozen=True)
class Offer:
    """A device and the memory slices that it takes of its GPU."""

    device: str
    gpu_uuid: str
    slices: frozenset[int]


class Book:
    """The free slices of every GPU. `whole` are the numbers of the GPUs that are given whole, too."""

    def __init__(self, roster: Roster, whole: frozenset[int]) -> None:
        self._changed = threading.Condition()
        self._free: dict[str, set[int]] = {}
        self._partitions: list[Offer] = []
        self._wholes: list[Offer] = []
        for known in roster.gpus:
            offers = [
                Offer(
                    render_partition_name(known.number, profile, place),
                    known.gpu.uuid,
                    frozenset(range(place.start, place.start + place.size)),
                )
                for profile in known.gpu.profiles
                if "+" not in profile.name
                for place in profile.placements
            ]
            every = frozenset().union(*(offer.slices for offer in offers))
            self._free[known.gpu.uuid] = set(every)
            self._partitions += offers
            if known.number in whole:
                self._wholes.append(Offer(known.name, known.gpu.uuid, every))

    @contextmanager
    def hold(self, choice: random.Random) -> Iterator[Offer]:
        """A free device for the length of the block, small ones more often than big ones."""
        with self._changed:
            offers = self._wholes if self._wholes and choice.randrange(WHOLE_IN) == 0 else self._partitions
            found = self._changed.wait_for(lambda: self._find(offers, choice), WAIT_S)
            assert found is not None, f"no device came free within {WAIT_S:g} s"
            self._free[found.gpu_uuid] -= found.slices
        try:
            yield found
        finally:
            with self._changed:
                self._free[found.gpu_uuid] |= found.slices
                self._changed.notify_all()

    def _find(self, offers: list[Offer], choice: random.Random) -> Offer | None:
        free = [offer for offer in offers if offer.slices <= self._free[offer.gpu_uuid]]
        return choice.choices(free, [1 / len(offer.slices) for offer in free])[0] if free else None
