"""What a claim was given, as kept on disk: one record per claim, the only truth about what is ours.

The file, read under the lock, decides; memory never does. `edge/documents/record.py` holds the
form on disk and its versions; here are the nouns and the questions asked of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tesela.core.claim import base_request
from tesela.core.model import ClaimRef, LivePartition, Placement, PreparedDevice


class ClaimState(StrEnum):
    """Where a claim stands. Anything but PREPARED is half done: resume it or undo it."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


class PartitionRole(StrEnum):
    """Which of a device's partitions the workload uses, will use, or has left (growth swaps them)."""

    CURRENT = "current"
    NEXT = "next"
    RETIRING = "retiring"


class PartitionState(StrEnum):
    """Where one partition stands."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RESIZING = "resizing"
    UNPREPARING = "unpreparing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPartition:
    """One partition of a device. `ours` is False for a partition made by somebody else: it is never destroyed.

    Ids and UUID are None until the instance was created; they are live facts, valid for one boot and generation.
    """

    profile_id: int
    profile: str
    placement: Placement
    role: PartitionRole
    state: PartitionState
    ours: bool
    gi_id: int | None = None
    ci_id: int | None = None
    mig_uuid: str | None = None

    def matches(self, live: LivePartition) -> bool:
        """Whether `live` stands in this partition's slot: same profile and placement (the GPU is the caller's)."""
        return self.profile_id == live.profile_id and self.placement == live.placement


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDevice:
    """One allocation result of ours. `partitions` is empty for a whole GPU.

    `request` is the allocation's own name, `parent/sub` for a prioritized request. `boot_id` and `generation` are the
    GPU's when the partitions were made: with others, those partitions are gone. `time_slice` is the interval that was
    applied, None where none was. `interrupted` is of a whole GPU: its driver was loaded anew, or it went and came back,
    since the claim was given it, so what its containers had open there is gone. It ends with the claim or a boot.
    """

    request: str
    pool: str
    device: str
    gpu_uuid: str
    admin_access: bool
    share_id: str | None
    boot_id: str
    generation: int
    partitions: tuple[RecordedPartition, ...] = ()
    time_slice: str | None = None
    interrupted: bool = False

    @property
    def base_request(self) -> str:
        """The name the pod uses: a subrequest answers under its parent's name."""
        return base_request(self.request)

    @property
    def current(self) -> RecordedPartition | None:
        """The partition in use, None for a whole GPU."""
        return next((p for p in self.partitions if p.role is PartitionRole.CURRENT), None)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Grant:
    """A GPU-instance id that containers of the claim may open, though the partition that had it is gone.

    `request` is the base name of the request that it was for: containers may have been given that one alone.
    """

    gpu_uuid: str
    gi_id: int
    boot_id: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """One claim. `pod_claim_name` is the pod's name for it, None where unknown (a claim without template).

    `grants` are of partitions that the claim was given and lost; they end with the claim or a boot. A record without
    devices is what is left of a claim for their sake.
    """

    claim: ClaimRef
    state: ClaimState
    devices: tuple[RecordedDevice, ...]
    pod_claim_name: str | None = None
    grants: tuple[Grant, ...] = ()
    adopted: bool = False

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs it touches, ascending: the order in which their locks are taken."""
        return tuple(sorted({device.gpu_uuid for device in self.devices}))

    def devices_on(self, gpu_uuid: str) -> Iterator[RecordedDevice]:
        """Its devices on one GPU."""
        return (device for device in self.devices if device.gpu_uuid == gpu_uuid)


def find_holder(records: Iterable[ClaimRecord], device: str, pool: str, *, besides: str) -> ClaimRecord | None:
    """The record of another claim than `besides` (a UID) that holds `device` without admin access."""
    for record in records:
        if record.claim.uid == besides:
            continue
        if any(d.device == device and d.pool == pool and not d.admin_access for d in record.devices):
            return record
    return None


def render_answer(record: ClaimRecord, cdi_ids: dict[tuple[str, str], tuple[str, ...]]) -> tuple[PreparedDevice, ...]:
    """What the kubelet is told: `cdi_ids` maps (request, device) to the CDI ids of that result."""
    return tuple(
        PreparedDevice(
            request_names=(device.base_request,),
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=cdi_ids[device.request, device.device],
            share_id=device.share_id,
        )
        for device in record.devices
    )
