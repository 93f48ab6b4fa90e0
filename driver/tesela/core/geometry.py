"""MIG geometry: which partitions a GPU can be cut into, which exclude each other, and in which order to offer them.

The scheduler is first-fit in the order of publication (structured allocator: pools, slices by name, devices in slice
order), so the order here is placement policy. Everything is computed from the profiles that the driver reports; no
model's grid, id or count is known by heart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tesela.core.model import Gpu, LivePartition, Placement, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition that one GPU can be cut into: one profile at one of its legal placements."""

    profile: Profile
    placement: Placement

    def matches(self, live: LivePartition) -> bool:
        """Whether `live` stands in this slot: same profile and placement (the GPU is the caller's)."""
        return self.profile.profile_id == live.profile_id and self.placement == live.placement


def overlap(one: Placement, other: Placement) -> bool:
    """Whether two placements share a memory slice."""
    return one.start < other.start + other.size and other.start < one.start + one.size


def exclude(one: Partition, other: Partition) -> bool:
    """Whether one GPU cannot hold both: a shared memory slice, or the only instance of a profile taken."""
    same_profile = one.profile.profile_id == other.profile.profile_id
    return overlap(one.placement, other.placement) or (same_profile and one.profile.max_instances <= 1)


def plan_partitions(gpu: Gpu) -> tuple[Partition, ...]:
    """Every legal partition of `gpu` in publishing order; empty where it cannot be cut.

    The smallest profile first: compute slices, then memory slices, plain before `+me` and its like. Its starts by how
    many partitions stay possible on an empty GPU once it is placed there, most first, ties to the higher start: the
    left half is kept for the big profiles.
    """
    return _plan_partitions(gpu.profiles)


def find_profile(gpu: Gpu, profile_id: int) -> Profile | None:
    """The profile of `gpu` with this id."""
    return next((profile for profile in gpu.profiles if profile.profile_id == profile_id), None)


def list_survivors(partitions: Iterable[Partition], taken: Sequence[Partition]) -> tuple[Partition, ...]:
    """Those of `partitions` that a GPU can still hold beside each of `taken`."""
    return tuple(p for p in partitions if not any(exclude(p, other) for other in taken))


@lru_cache(maxsize=64)  # one entry per model and driver version seen; a node has few
def _plan_partitions(profiles: tuple[Profile, ...]) -> tuple[Partition, ...]:
    everything = tuple(
        Partition(profile=profile, placement=placement) for profile in profiles for placement in profile.placements
    )
    survivors = {p: len(list_survivors(everything, (p,))) for p in everything}
    return tuple(
        sorted(
            everything,
            key=lambda p: (*_profile_rank(p), -survivors[p], -p.placement.start),
        )
    )


def _profile_rank(partition: Partition) -> tuple[int, int, bool, int, str, int]:
    profile = partition.profile
    engines = profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
    variant = profile.name.rpartition("gb")[2]
    return (
        profile.compute_slices,
        partition.placement.size,
        bool(variant),
        engines,
        variant,
        profile.profile_id,
    )
