"""Whether a recorded partition may be destroyed: invariant 4 (docs/invariants.md) as a function.

Nothing is destroyed unless its record says that we made it and its UUID still matches, or the record is half done for
exactly that slot, which was seen empty under the lock when the record was written, in the same boot and generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from tesela.core.model import LivePartition
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    Grant,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)
from tesela.core.roster import KnownGpu, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroy:
    """This live partition is ours to destroy."""

    live: LivePartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """There is nothing of ours to destroy; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Ours is gone and another partition stands in its slot: it is left alone."""

    live: LivePartition


Release: TypeAlias = Destroy | Nothing | Foreign


def is_stale(device: RecordedDevice, known: KnownGpu | None, boot_id: str) -> bool:
    """Whether the partitions of `device` went with a boot or a reset: ids and UUIDs in its record mean nothing now."""
    return known is None or device.boot_id != boot_id or device.generation != known.generation


def list_foreign(
    gpu_uuid: str, live: Iterable[LivePartition], records: Iterable[ClaimRecord], *, with_adopted: bool = False
) -> list[LivePartition]:
    """The live partitions of a GPU that stand in no record's slot: nobody of ours made them. By placement.

    `with_adopted`: those of adopted claims, too, that stay when their claim ends.
    """
    slots = {
        (partition.profile_id, partition.placement)
        for record in records
        for device in record.devices_on(gpu_uuid)
        for partition in device.partitions
        if partition.ours or not (with_adopted and record.adopted)
    }
    foreign = [one for one in live if one.gpu_uuid == gpu_uuid and (one.profile_id, one.placement) not in slots]
    return sorted(foreign, key=lambda one: (one.placement, one.profile_id))


def render_unpreparing(record: ClaimRecord) -> ClaimRecord:
    """A prepared claim that is being given back."""
    devices = tuple(
        replace(
            device,
            partitions=tuple(
                replace(partition, state=PartitionState.UNPREPARING) if partition.ours else partition
                for partition in device.partitions
            ),
        )
        for device in record.devices
    )
    return replace(record, state=ClaimState.UNPREPARING, devices=devices)


def render_lost(record: ClaimRecord) -> ClaimRecord:
    """A prepared claim whose partitions are gone: half done from here on, and its instance ids are still granted.

    Its containers need not have noticed, and only the kubelet knows when they end (invariant 9).
    """
    lost = {
        Grant(gpu_uuid=device.gpu_uuid, gi_id=partition.gi_id, boot_id=device.boot_id, request=device.base_request)
        for device in record.devices
        for partition in device.partitions
        if partition.gi_id is not None
    }
    return replace(record, state=ClaimState.PREPARING, grants=tuple(sorted(lost | set(record.grants))))


def render_interrupted(record: ClaimRecord, roster: Roster, boot_id: str) -> ClaimRecord:
    """The record with those whole GPUs marked that were lost to their driver and came back within this boot.

    A boot interrupts nobody: it ended the containers. Nor is a claim with admin access marked, which outlives many such
    events and shares its device with whoever works there.
    """
    return replace(
        record,
        devices=tuple(
            replace(device, interrupted=True) if _is_interrupted(device, roster, boot_id) else device
            for device in record.devices
        ),
    )


def _is_interrupted(device: RecordedDevice, roster: Roster, boot_id: str) -> bool:
    known = roster.find(device.gpu_uuid)
    whole = not device.partitions and not device.admin_access
    return whole and known is not None and device.boot_id == boot_id and device.generation != known.generation


def render_renewed(record: ClaimRecord, roster: Roster, boot_id: str) -> ClaimRecord:
    """A claim of whole GPUs after a boot or a loss of their driver: the same devices, of today.

    The caller has seen that no device with partitions is stale.
    """
    record = render_interrupted(record, roster, boot_id)
    return replace(
        record,
        devices=tuple(
            replace(
                device,
                boot_id=boot_id,
                generation=known.generation,
                interrupted=device.interrupted and device.boot_id == boot_id,
            )
            if (known := roster.find(device.gpu_uuid)) is not None
            else device
            for device in record.devices
        ),
    )


def render_remnant(record: ClaimRecord, boot_id: str) -> ClaimRecord | None:
    """What is left of a claim when its devices are given back and its containers may run; None where they cannot."""
    grants = tuple(grant for grant in record.grants if grant.boot_id == boot_id)
    return replace(record, state=ClaimState.PREPARING, devices=(), grants=grants) if grants else None


def find_grant(records: Iterable[ClaimRecord], live: LivePartition, boot_id: str) -> ClaimRecord | None:
    """The claim whose containers may open the GPU-instance id of `live` for what it was before (invariant 9).

    One that was given `live` itself (admin access) is no such claim. A boot ends all grants.
    """
    for record in records:
        if any(_is_for(grant, live, boot_id) for grant in record.grants):
            return record
        for device in record.devices_on(live.gpu_uuid):
            if device.boot_id == boot_id and any(
                partition.gi_id == live.gi_id and partition.mig_uuid != live.mig_uuid for partition in device.partitions
            ):
                return record
    return None


def find_own_grant(grants: Iterable[Grant], live: LivePartition, boot_id: str, request: str) -> Grant | None:
    """The claim's own grant of this id for another request than `request`: one container may have only one of them."""
    return next((one for one in grants if _is_for(one, live, boot_id) and one.request != request), None)


def _is_for(grant: Grant, live: LivePartition, boot_id: str) -> bool:
    return (grant.gpu_uuid, grant.gi_id, grant.boot_id) == (live.gpu_uuid, live.gi_id, boot_id)


def plan_release(
    record: ClaimRecord,
    device: RecordedDevice,
    partition: RecordedPartition,
    *,
    stale: bool,
    live: Iterable[LivePartition],
) -> Release:
    """What to do about one recorded partition, `live` being the partitions of its GPU as seen under the lock."""
    if not partition.ours or device.admin_access:
        return Nothing(reason="made by somebody else")
    if stale:
        return Nothing(reason="went with a boot or a reset of its GPU")
    found = next((one for one in live if partition.matches(one)), None)
    if found is None:
        return Nothing(reason="no such partition lives")
    return Destroy(live=found) if _is_ours(record.state, partition, found) else Foreign(live=found)


def _is_ours(state: ClaimState, partition: RecordedPartition, found: LivePartition) -> bool:
    """Whether the instance in the slot is the one that the record speaks of."""
    if partition.mig_uuid is not None and found.mig_uuid == partition.mig_uuid:
        return True
    if state is ClaimState.PREPARED or (found.mig_uuid is None and found.ci_id is not None):
        return False  # the latter has several compute instances, and we make one
    if partition.mig_uuid is None:
        return True  # never finished; the slot was seen empty before
    # An unprepare of ours got as far as the compute instance.
    return found.mig_uuid is None and found.gi_id == partition.gi_id
