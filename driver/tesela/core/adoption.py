"""What becomes of the claims that NVIDIA's driver prepared, when this driver takes the node over.

A claim becomes a record of ours, so that nothing it holds is given out again and its unprepare undoes what NVIDIA's
driver did, or it is left: then nothing of it is ever destroyed, and what lives of it is fenced like anything else that
others made. Pure; `plugin/adopt.py` looks, writes and tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from tesela.core.checkpoint import Checkpoint, TheirClaim, TheirDevice, TheirKind
from tesela.core.claim import AllocatedResult, base_request
from tesela.core.geometry import find_profile
from tesela.core.model import ClaimRef, LivePartition, Placement, Profile, Shape
from tesela.core.naming import PartitionName, parse_device_name
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)
from tesela.core.roster import KnownGpu, Roster
from tesela.core.shape import Policy
from tesela.core.sweep import is_claim_uid


class TheirPartitions(StrEnum):
    """How NVIDIA's driver came by its partitions: as its ResourceSlices tell, or as the operator says for all."""

    AUTO = "auto"
    ON_DEMAND = "on-demand"
    STATIC = "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionSight:
    """What is known of the node when a claim is looked at.

    `live` has the partitions of each GPU that answered. `on_demand` are the devices that their ResourceSlices showed
    to be made on demand; `shared` the MIG UUIDs that several claims hold. `time_slices` are the intervals that this
    claim's devices were given, by device name.
    """

    pool: str
    boot_id: str
    roster: Roster
    policy: Policy
    live: Mapping[str, tuple[LivePartition, ...]]
    partitions: TheirPartitions = TheirPartitions.AUTO
    on_demand: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    time_slices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """The claim becomes `record`. `remarks` are sentences about what its end leaves to the operator.

    `mps_gpus` are GPUs on which an MPS control daemon of theirs goes on.
    """

    record: ClaimRecord
    remarks: tuple[str, ...] = ()
    mps_gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The claim stays theirs: never destroyed, and its unprepare succeeds and does nothing. `reason` is a sentence."""

    reason: str


Adoption: TypeAlias = Adopt | Leave

STARTED: Final = (
    "NVIDIA's driver began to prepare it and did not finish: the kubelet has it prepared anew, and a partition that "
    "was made for it stays, fenced, until `nvidia-smi mig -dgi`"
)
OTHER_BOOT: Final = "the node has booted since, which ended what was prepared: the kubelet has it prepared anew"


class Fate(StrEnum):
    """What became of a claim of theirs."""

    ADOPTED = "adopted"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedClaim:
    """One line of the report. `claim` has empty names where nobody on the node tells them."""

    claim: ClaimRef
    devices: tuple[str, ...]
    fate: Fate
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionReport:
    """What was made of one checkpoint. `at_s` are Unix seconds; `kept_as` is where the file lies now, "" in place."""

    at_s: int
    kept_as: str
    claims: tuple[AdoptedClaim, ...] = ()


def list_shared(checkpoint: Checkpoint) -> frozenset[str]:
    """MIG UUIDs that more than one claim holds without admin access: none of them may destroy it for the others."""
    seen: set[str] = set()
    shared: set[str] = set()
    for claim in checkpoint.claims:
        held = {one.mig_uuid for one in claim.devices if one.mig_uuid and not find_result(claim, one).admin_access}
        shared |= seen & held
        seen |= held
    return frozenset(shared)


def list_devices(claim: TheirClaim) -> tuple[str, ...]:
    """The names of its devices, as prepared or, half done, as allocated."""
    allocated = claim.allocation.results if claim.allocation is not None else ()
    return tuple(dict.fromkeys(one.device for one in (claim.devices or allocated)))


def plan_adoption(
    claim: TheirClaim, ref: ClaimRef, sight: AdoptionSight, *, pod_claim_name: str | None = None
) -> Adoption:
    """What becomes of one claim. `ref` names it as far as anybody tells; its UID is the checkpoint's."""
    reason = _find_obstacle(claim, sight)
    if reason is not None:
        return Leave(reason=reason)
    devices = []
    remarks: list[str] = []
    for one in claim.devices:
        planned = _plan_device(claim, one, sight)
        if isinstance(planned, Leave):
            return planned
        devices.append(planned)
        remarks.extend(_list_remarks(one, planned, sight))
    record = ClaimRecord(
        claim=ref,
        state=ClaimState.PREPARED,
        devices=tuple(devices),
        pod_claim_name=pod_claim_name,
        adopted=True,
    )
    mps_gpus = tuple(sorted({one.gpu_uuid for one in claim.devices if one.mps_daemon}))
    return Adopt(record=record, remarks=tuple(dict.fromkeys(remarks)), mps_gpus=mps_gpus)


def _find_obstacle(claim: TheirClaim, sight: AdoptionSight) -> str | None:
    reason = None
    if not is_claim_uid(claim.uid):
        reason = "its key in the checkpoint is no UID of a claim"
    elif claim.problem:
        reason = f"its entry in the checkpoint cannot be read: {claim.problem}"
    elif not claim.completed:
        reason = STARTED
    elif not claim.devices:
        reason = "it holds no device"
    return reason or next((text for one in claim.devices if (text := _find_foreign(one, sight))), None)


def _find_foreign(one: TheirDevice, sight: AdoptionSight) -> str | None:
    if one.kind is TheirKind.VFIO:
        return (
            f"{one.device} was given to a virtual machine (vfio-pci), which this driver does not do: when its pod has "
            f"ended, bind GPU {one.gpu_uuid} to the nvidia driver again, or reboot the node"
        )
    if one.pool != sight.pool:
        return f"{one.device} is of pool {one.pool}, and this node's pool is {sight.pool}: the file is another node's"
    return None


def _plan_device(claim: TheirClaim, one: TheirDevice, sight: AdoptionSight) -> RecordedDevice | Leave:
    known = sight.roster.find(one.gpu_uuid)
    if known is None:
        return Leave(reason=f"GPU {one.gpu_uuid} of {one.device} is not on this node, or does not answer")
    result = find_result(claim, one)
    partitions: tuple[RecordedPartition, ...] = ()
    if one.kind is TheirKind.MIG:
        partition = _plan_partition(one, known, sight, admin=result.admin_access)
        if partition is None:
            return Leave(
                reason=f"{one.mig_uuid} of {one.device} does not live, and GPU {one.gpu_uuid} has no such profile"
            )
        partitions = (partition,)
    return RecordedDevice(
        request=result.request,
        pool=one.pool,
        device=one.device,
        gpu_uuid=one.gpu_uuid,
        admin_access=result.admin_access,
        share_id=one.share_id,
        boot_id=sight.boot_id,
        generation=known.generation,
        partitions=partitions,
        time_slice=None if partitions or result.admin_access else sight.time_slices.get(one.device),
    )


def find_result(claim: TheirClaim, one: TheirDevice) -> AllocatedResult:
    """The allocation's result that was prepared as this device; made from the device where nothing tells of it."""
    named = one.requests[0] if one.requests else ""
    allocated = claim.allocation.results if claim.allocation is not None else ()
    found = [result for result in allocated if (result.pool, result.device) == (one.pool, one.device)]
    for name in (lambda request: request, base_request):
        if result := next((result for result in found if name(result.request) == name(named)), None):
            return result
    return found[0] if found else AllocatedResult(request=named, pool=one.pool, device=one.device)


def _plan_partition(
    one: TheirDevice, known: KnownGpu, sight: AdoptionSight, *, admin: bool
) -> RecordedPartition | None:
    """Where it lives now; where it does not, or its GPU is silent, where its name says. None: that is no place."""
    live = next((seen for seen in sight.live.get(one.gpu_uuid, ()) if seen.mig_uuid == one.mig_uuid), None)
    name = parse_device_name(one.device)
    named = name if isinstance(name, PartitionName) else None
    profile = find_profile(known.gpu, live.profile_id if live else named.profile_id if named else -1)
    placement = live.placement if live else _find_placement(profile, named)
    if profile is None or placement is None:
        return None
    fits = live is None or (live.gi_id, live.ci_id) == (one.gi_id, one.ci_id)
    fits = fits and named is not None and (named.profile_id, named.start) == (profile.profile_id, placement.start)
    return RecordedPartition(
        profile_id=profile.profile_id,
        profile=profile.name,
        placement=placement,
        role=PartitionRole.CURRENT,
        state=PartitionState.PREPARED,
        ours=fits and not admin and one.mig_uuid not in sight.shared and _was_made(one, known, sight),
        gi_id=live.gi_id if live else one.gi_id,
        ci_id=live.ci_id if live else one.ci_id,
        mig_uuid=one.mig_uuid,
    )


def _find_placement(profile: Profile | None, named: PartitionName | None) -> Placement | None:
    places = profile.placements if profile is not None and named is not None else ()
    return next((one for one in places if named is not None and one.start == named.start), None)


def _was_made(one: TheirDevice, known: KnownGpu, sight: AdoptionSight) -> bool:
    """Whether NVIDIA's driver made the partition for the claim. Where nothing says so it is never destroyed."""
    if sight.policy.find_rule(known).mode is Shape.STATIC:
        return False
    match sight.partitions:
        case TheirPartitions.ON_DEMAND:
            return True
        case TheirPartitions.STATIC:
            return False
        case TheirPartitions.AUTO:
            return one.device in sight.on_demand


def _list_remarks(one: TheirDevice, planned: RecordedDevice, sight: AdoptionSight) -> Iterator[str]:
    known = sight.roster.find(planned.gpu_uuid)
    name = parse_device_name(one.device)
    if known is not None and name is not None and name.number != known.number:
        yield (
            f"{one.device} is of GPU {one.gpu_uuid}, which is {known.name} here: prepare refuses what overlaps it, "
            "under either name, until it ends"
        )
    current = planned.current
    static = known is not None and sight.policy.find_rule(known).mode is Shape.STATIC
    if current is not None and not current.ours and not planned.admin_access and not static:
        yield (
            f"{current.mig_uuid} stays when the claim ends, fenced: nothing says that NVIDIA's driver made it on "
            "demand; destroy it then, or set its GPU to static partitions in the policy file"
        )
    if one.mps_daemon:
        yield (
            f"MPS control daemon {one.mps_daemon} goes on when the claim ends: delete Deployment "
            f"mps-control-daemon-{one.mps_daemon}, run `nvidia-smi -i {one.gpu_uuid} -c DEFAULT`, then `tesela health "
            "clear`; until then the GPU is tainted"
        )


def list_gpus(claims: Iterable[TheirClaim]) -> tuple[str, ...]:
    """UUIDs of the GPUs that these claims touch, ascending."""
    return tuple(sorted({one.gpu_uuid for claim in claims for one in claim.devices}))
