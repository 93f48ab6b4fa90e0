"""What could still be handed out: the states of published devices, and the largest device that each GPU has room for.

For those who watch a node, not for the scheduler: it decides by counters, and this follows the same counters, records
and fences without asking NVML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tesela.core.geometry import Partition, find_profile, overlap, plan_partitions
from tesela.core.model import LivePartition, Placement
from tesela.core.record import ClaimRecord, RecordedDevice
from tesela.core.roster import KnownGpu
from tesela.core.shape import OfferedShape, PartitionSource, Policy, plan_shape
from tesela.core.slices.counters import plan_consumption
from tesela.core.slices.pool import Pool
from tesela.core.slices.state import Fence, Json


class DeviceStanding(StrEnum):
    """Whether a published device could be handed out now. An allocated one is that, tainted or not.

    EXCLUDED: an allocated device holds memory slices of it. FREE: alone; two free ones may exclude each other.
    """

    FREE = "free"
    ALLOCATED = "allocated"
    TAINTED = "tainted"
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True, order=True)
class DeviceKind:
    """What devices are counted by. `profile` is "" for a whole GPU."""

    model: str
    profile: str
    state: DeviceStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The largest device of a GPU that a claim could be given. `profile` is "" for the whole GPU, and for none (0)."""

    gpu_uuid: str
    profile: str
    memory_bytes: int


def count_devices(pool: Pool, records: Iterable[ClaimRecord]) -> dict[DeviceKind, int]:
    """How many devices of `pool`, as published, are of each kind, in a fixed order."""
    held = {
        device.device
        for record in records
        for device in record.devices
        if device.pool == pool.name and not device.admin_access
    }
    devices = [device for content in pool.slices for device in content.devices]
    taken: dict[str, list[Placement | None]] = {}
    for device in devices:
        if device["name"] in held:
            taken.setdefault(_get_text(device, "parentUUID"), []).append(_get_placement(device))
    kinds = Counter(
        DeviceKind(
            _get_text(device, "productName"),
            _get_text(device, "profile"),
            _find_standing(device, held, taken.get(_get_text(device, "parentUUID"), [])),
        )
        for device in devices
    )
    return dict(sorted(kinds.items()))


def find_largest(
    known: KnownGpu,
    policy: Policy,
    *,
    records: Iterable[ClaimRecord],
    fences: Sequence[Fence],
    live: Iterable[LivePartition] = (),
) -> Room | None:
    """The room that is left on one GPU; None where nothing may be handed out there by policy, or memory is unknown.

    `fences` are those that keep new claims away, the ones around foreign partitions too. `live` counts for static
    partitions alone.
    """
    uuid, shape = known.gpu.uuid, plan_shape(known, policy)
    if not shape.whole and shape.partitions is PartitionSource.NONE:
        return None
    held = [device for record in records for device in record.devices_on(uuid) if not device.admin_access]
    candidates = [
        one
        for one in _list_candidates(known, shape, held, live)
        if known.present and not any(fence.covers(uuid, one.placement) for fence in fences)
    ]
    if candidates:
        best = max(candidates, key=lambda one: (one.profile.memory_bytes, one.profile.compute_slices))
        return Room(gpu_uuid=uuid, profile=best.profile.name, memory_bytes=best.profile.memory_bytes)
    free = known.present and not held and not any(fence.covers(uuid, None) for fence in fences)
    if not (shape.whole and free):
        return Room(gpu_uuid=uuid, profile="", memory_bytes=0)
    memory_bytes = known.gpu.memory_bytes
    return None if memory_bytes is None else Room(gpu_uuid=uuid, profile="", memory_bytes=memory_bytes)


def _list_candidates(
    known: KnownGpu, shape: OfferedShape, held: Sequence[RecordedDevice], live: Iterable[LivePartition]
) -> Iterator[Partition]:
    if any(not device.partitions for device in held):
        return  # the whole GPU is held
    taken = [partition for device in held for partition in device.partitions]
    allowed = [one for one in plan_partitions(known.gpu) if shape.allows(one.profile)]
    match shape.partitions:
        case PartitionSource.STATIC:
            stand = {(one.profile_id, one.placement) for one in live if one.gpu_uuid == known.gpu.uuid and one.mig_uuid}
            gone = {(one.profile_id, one.placement) for one in taken}
            yield from (one for one in allowed if (one.profile.profile_id, one.placement) in stand - gone)
        case PartitionSource.ON_DEMAND:
            profiles = [find_profile(known.gpu, one.profile_id) for one in taken]
            used = Counter(one.profile_id for one in taken)
            there = [
                Partition(profile=profile, placement=one.placement)
                for profile, one in zip(profiles, taken, strict=True)
                if profile is not None
            ]
            for one in allowed:
                apart = not any(overlap(one.placement, other.placement) for other in taken)
                if apart and used[one.profile.profile_id] < one.profile.max_instances and _fits(known, there, one):
                    yield one
        case PartitionSource.NONE:
            return


def _fits(known: KnownGpu, taken: Collection[Partition], one: Partition) -> bool:
    """Whether engines, multiprocessors and memory suffice, each counter being the maximum over the GPU's profiles."""
    if not taken:
        return True
    highest: Counter[str] = Counter()
    for profile in known.gpu.profiles:
        highest |= Counter(plan_consumption(Partition(profile=profile, placement=Placement(start=0, size=0))))
    needed: Counter[str] = Counter()
    for partition in (*taken, one):
        needed.update(plan_consumption(Partition(profile=partition.profile, placement=Placement(start=0, size=0))))
    return all(value <= highest[name] for name, value in needed.items())


def _find_standing(device: Json, held: Collection[str], taken: Sequence[Placement | None]) -> DeviceStanding:
    if device["name"] in held:
        return DeviceStanding.ALLOCATED
    if any(taint["effect"] in {"NoSchedule", "NoExecute"} for taint in device.get("taints", ())):
        return DeviceStanding.TAINTED
    placement = _get_placement(device)
    if any(other is None or placement is None or overlap(placement, other) for other in taken):
        return DeviceStanding.EXCLUDED
    return DeviceStanding.FREE


def _get_placement(device: Json) -> Placement | None:
    """None for a whole GPU."""
    if not _get_text(device, "profile"):
        return None
    attributes = device["attributes"]
    return Placement(start=attributes["placementStart"]["int"], size=attributes["placementSize"]["int"])


def _get_text(device: Json, name: str) -> str:
    return str(device["attributes"][name]["string"])
