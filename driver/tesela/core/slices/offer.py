"""Which devices a GPU publishes, in which order, and with which taints.

The shape gives the offer; claims add what they hold; fences and absence taint it; an API server without counters or
taints takes away what would be unsafe without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from tesela.core.geometry import Partition, find_profile, overlap, plan_partitions
from tesela.core.model import LivePartition, Placement, Profile
from tesela.core.naming import render_partition_name
from tesela.core.record import RecordedDevice
from tesela.core.release import list_foreign
from tesela.core.roster import KnownGpu
from tesela.core.shape import OfferedShape, PartitionSource, plan_shape
from tesela.core.slices.state import (
    FOREIGN_KEY,
    GONE_KEY,
    MAX_TAINTS,
    MAX_TAINTS_BEFORE_1_35,
    NO_EXECUTE,
    WITHDRAWN_KEY,
    ApiAbilities,
    Fence,
    PoolState,
    Taint,
    render_label_value,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """One device to publish; `partition` is None for a whole GPU, `mig_uuid` is known for static partitions only."""

    name: str
    partition: Partition | None
    mig_uuid: str = ""
    held: bool = False
    taints: tuple[Taint, ...] = ()

    @property
    def placement(self) -> Placement | None:
        """The memory slices that it takes; None for the whole GPU."""
        return self.partition.placement if self.partition else None

    def excludes(self, other: OfferedDevice) -> bool:
        """Whether both cannot be handed out at once."""
        return self.placement is None or other.placement is None or overlap(self.placement, other.placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOffer:
    """The devices of one GPU in publishing order. `counted`: they share a counter set, because some exclude others.

    `remarks` are sentences for the operator: what is left out, and why.
    """

    known: KnownGpu
    devices: tuple[OfferedDevice, ...]
    counted: bool
    remarks: tuple[str, ...] = ()


def plan_offers(state: PoolState, abilities: ApiAbilities) -> tuple[GpuOffer, ...]:
    """One offer per known GPU, by NVML index (a gone GPU's last one), then by number."""
    in_order = sorted(state.roster.gpus, key=lambda known: (known.gpu.index, known.number))
    return tuple(_plan_offer(known, state, abilities) for known in in_order)


def plan_foreign_fences(known: KnownGpu, state: PoolState) -> tuple[Fence, ...]:
    """One fence per live partition that no record knows, unless the shape offers partitions made by others.

    Nothing may be created over it and nothing of it destroyed (invariant 1): it is waited out. One of an adopted claim
    that stays when the claim ends is fenced before: a claim that came in between would wait in vain.
    """
    if plan_shape(known, state.policy).partitions is PartitionSource.STATIC:
        return ()
    return tuple(
        Fence(
            gpu_uuid=live.gpu_uuid,
            placement=live.placement,
            key=FOREIGN_KEY,
            value=_describe_foreign(known, live),
        )
        for live in list_foreign(known.gpu.uuid, state.live, state.records, with_adopted=True)
    )


def _describe_foreign(known: KnownGpu, live: LivePartition) -> str:
    profile = find_profile(known.gpu, live.profile_id)
    name = profile.name if profile else f"profile-{live.profile_id}"
    return render_label_value(f"{name}-at-{live.placement.start}")


def _plan_offer(known: KnownGpu, state: PoolState, abilities: ApiAbilities) -> GpuOffer:
    shape = plan_shape(known, state.policy)
    remarks = [remark for remark in (shape.remark, _remark_unknown_profiles(known, shape, state)) if remark]
    devices = _add_held(known, state, _list_shaped(known, shape, state))
    fences = (*state.fences, *plan_foreign_fences(known, state))
    most = MAX_TAINTS if abilities.split else MAX_TAINTS_BEFORE_1_35
    devices = [_taint(device, known, fences, most) for device in devices]
    if not abilities.taints:
        kept = [replace(device, taints=()) for device in devices if device.held or not device.taints]
        if len(kept) < len(devices):
            remarks.append(
                f"{known.name} leaves out {len(devices) - len(kept)} tainted devices: this API server drops taints; "
                "turn the feature gate DRADeviceTaints on"
            )
        devices = kept
    if not abilities.counters:
        kept = _leave_out_conflicts(devices, shape)
        if len(kept) < len(devices):
            remarks.append(
                f"{known.name} leaves out {len(devices) - len(kept)} devices that exclude others: this API server "
                "drops counters; turn the feature gate DRAPartitionableDevices on"
            )
        devices = kept
    counted = abilities.counters and _needs_counters(devices, shape)
    return GpuOffer(known=known, devices=tuple(devices), counted=counted, remarks=tuple(remarks))


def _remark_unknown_profiles(known: KnownGpu, shape: OfferedShape, state: PoolState) -> str:
    """A profile that the policy allows and no GPU has is a typing error; one of another model may be meant for that.

    Where none of them is the GPU's own it offers no partition at all, which is told in any case.
    """
    own = {profile.name for profile in known.gpu.profiles}
    allowed = shape.allowed_profiles
    if not allowed or not own or allowed <= own:
        return ""
    elsewhere = {profile.name for one in state.roster.gpus for profile in one.gpu.profiles}
    unknown = sorted(allowed - elsewhere if allowed & own else allowed)
    if not unknown:
        return ""
    return (
        f"{known.name} ({known.gpu.product_name}) has no profile {', '.join(unknown)}, which its policy allows; it has "
        f"{', '.join(sorted(own))}: correct allowedProfiles"
    )


def _needs_counters(devices: list[OfferedDevice], shape: OfferedShape) -> bool:
    # On demand even disjoint partitions compete: for engines, and for profiles with fewer instances than placements.
    if shape.partitions is PartitionSource.ON_DEMAND:
        return bool(devices)
    return any(one.excludes(other) for one, other in combinations(devices, 2))


def _leave_out_conflicts(devices: list[OfferedDevice], shape: OfferedShape) -> list[OfferedDevice]:
    """What is safe without counters: what claims hold, the whole GPU if nothing is held, and static partitions."""
    held = [device for device in devices if device.held]
    kept = list(held)
    for device in devices:
        on_demand = device.partition is not None and shape.partitions is PartitionSource.ON_DEMAND
        if not device.held and not on_demand and not any(device.excludes(other) for other in kept):
            kept.append(device)
    return [device for device in devices if device in kept]


def _list_shaped(known: KnownGpu, shape: OfferedShape, state: PoolState) -> list[OfferedDevice]:
    match shape.partitions:
        case PartitionSource.ON_DEMAND:
            devices = [
                OfferedDevice(name=_name(known, partition), partition=partition)
                for partition in plan_partitions(known.gpu)
                if shape.allows(partition.profile)
            ]
        case PartitionSource.STATIC:
            devices = list(_list_static(known, shape, state))
        case PartitionSource.NONE:
            devices = []
    if shape.whole:
        devices.append(OfferedDevice(name=known.name, partition=None))
    return devices


def _list_static(known: KnownGpu, shape: OfferedShape, state: PoolState) -> Iterator[OfferedDevice]:
    """Live partitions that are one MIG device of a profile that is offered: compute instance there, UUID known."""
    lives = {(live.profile_id, live.placement): live for live in _list_live(known, state)}
    for partition in plan_partitions(known.gpu):
        live = lives.get((partition.profile.profile_id, partition.placement))
        if live and live.mig_uuid and live.ci_id is not None and shape.allows(partition.profile):
            yield OfferedDevice(name=_name(known, partition), partition=partition, mig_uuid=live.mig_uuid)


def _add_held(known: KnownGpu, state: PoolState, offered: list[OfferedDevice]) -> list[OfferedDevice]:
    """Marks what claims hold; what the shape no longer offers is added, tainted (invariant 6), in its place."""
    recorded = {device.device: device for device in _list_recorded(known, state) if not device.admin_access}
    devices = [replace(device, held=device.name in recorded) for device in offered]
    names = {device.name for device in devices}
    withdrawn = Taint(key=WITHDRAWN_KEY, value="held-by-a-claim")
    devices.extend(
        OfferedDevice(name=name, partition=_recall(known, device), held=True, taints=(withdrawn,))
        for name, device in recorded.items()
        if name not in names
    )
    order = {_name(known, partition): rank for rank, partition in enumerate(plan_partitions(known.gpu))}
    last = len(order)
    return sorted(devices, key=lambda d: (d.partition is None, order.get(d.name, last), d.name))


def _recall(known: KnownGpu, device: RecordedDevice) -> Partition | None:
    """The partition of a device that a claim holds, as today's driver knows the profile, else as recorded."""
    recorded = device.current
    if recorded is None:
        return None
    profile = find_profile(known.gpu, recorded.profile_id) or Profile(
        profile_id=recorded.profile_id,
        profile_enum=-1,
        name=recorded.profile,
        compute_slices=0,
        max_instances=1,
        memory_bytes=0,
        multiprocessors=0,
        copy_engines=0,
        decoders=0,
        encoders=0,
        jpeg_engines=0,
        ofa_engines=0,
        placements=(recorded.placement,),
    )
    return Partition(profile=profile, placement=recorded.placement)


def _taint(device: OfferedDevice, known: KnownGpu, fences: Iterable[Fence], most: int) -> OfferedDevice:
    """The device with its taints: of one key and effect the first, and of too many those that do most."""
    taints = [fence.taint for fence in fences if fence.covers(known.gpu.uuid, device.placement)]
    if not known.present:
        taints.append(Taint(key=GONE_KEY, value=""))
    first_per_key: dict[tuple[str, str], Taint] = {}
    for taint in (*device.taints, *taints):
        first_per_key.setdefault((taint.key, taint.effect), taint)
    strongest_first = sorted(first_per_key.values(), key=lambda taint: taint.effect != NO_EXECUTE)
    return replace(device, taints=tuple(sorted(strongest_first[:most])))


def _list_recorded(known: KnownGpu, state: PoolState) -> list[RecordedDevice]:
    return [
        device for record in state.records for device in record.devices_on(known.gpu.uuid) if device.pool == state.pool
    ]


def _list_live(known: KnownGpu, state: PoolState) -> list[LivePartition]:
    return [live for live in state.live if live.gpu_uuid == known.gpu.uuid]


def _name(known: KnownGpu, partition: Partition) -> str:
    return render_partition_name(known.number, partition.profile, partition.placement)
