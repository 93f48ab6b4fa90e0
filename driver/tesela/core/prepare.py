"""What preparing a claim takes: from an allocation, the roster and one look at the GPUs to a plan, or a refusal.

Pure: callers hold the locks, read the records and the GPUs, and perform the plan in its order. Every refusal is a
`ClaimRefused` whose message names the claim, the device, the cause and the next step.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from tesela.core.claim import AllocatedClaim, AllocatedResult
from tesela.core.config import DeviceConfig
from tesela.core.geometry import overlap
from tesela.core.model import ClaimRef, GpuInstance, LivePartition, Placement, Profile, Shape
from tesela.core.record import ClaimRecord, Grant, RecordedDevice, find_holder
from tesela.core.roster import KnownGpu
from tesela.core.shape import PolicyRule, explain_withheld
from tesela.core.wanted import Wanted, plan_time_slice, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One GPU as seen under its lock.

    `mig_enabled` is None without MIG. `instances` is every GPU instance; `described` those in slots that the claim
    wants. `rule` is the policy's: where it says static, partitions are made by somebody else, never by us.
    """

    known: KnownGpu
    mig_enabled: bool | None
    instances: tuple[GpuInstance, ...]
    described: tuple[LivePartition, ...]
    rule: PolicyRule


@dataclass(frozen=True, slots=True, kw_only=True)
class UseWhole:
    """Hand out the whole GPU as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePartition:
    """Hand out a partition that lives: made by somebody else, or by another claim (admin access)."""

    profile: Profile
    live: LivePartition


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePartition:
    """Create a partition in a slot seen empty."""

    profile: Profile
    placement: Placement


Action: TypeAlias = UseWhole | UsePartition | MakePartition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Others:
    """What other claims hold, as far as it can be read."""

    records: tuple[ClaimRecord, ...]
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """One result and what to do for it. `time_slice` is the interval to apply, None for none."""

    result: AllocatedResult
    known: KnownGpu
    action: Action
    time_slice: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSwitch:
    """Switch the MIG mode of an idle GPU that allows it without a reset."""

    known: KnownGpu
    enable: bool
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """The steps, in the order in which they are performed: switches, then devices.

    `grants` are the claim's own from before, which its record goes on holding.
    """

    claim: ClaimRef
    pod_claim_name: str | None
    switches: tuple[ModeSwitch, ...]
    devices: tuple[PlannedDevice, ...]
    grants: tuple[Grant, ...] = ()

    @property
    def has_effects(self) -> bool:
        """Whether a *preparing* record has to be on disk first."""
        return bool(self.switches) or any(
            isinstance(device.action, MakePartition) or device.time_slice is not None for device in self.devices
        )


def plan_prepare(
    claim: AllocatedClaim,
    wanted: Sequence[Wanted],
    configs: Sequence[DeviceConfig],
    views: Mapping[str, GpuView],
    records: Iterable[ClaimRecord],
    damaged: Iterable[str] = (),
    held: Container[str] = (),
) -> PreparePlan:
    """The plan for `claim`, or ClaimRefused.

    `configs` runs parallel to `wanted`. `views` holds the claim's GPUs by UUID, seen under their locks. `records` are
    all records on disk; the claim's own is left out of account, its leftovers have been undone before. `damaged` are
    the UIDs of claims whose records cannot be read: what they hold is not known. `held` are devices that the claim's
    own record held: the policy may have changed since, and takes nothing away. Nor has it a say in admin access.
    """
    others = _Others(
        records=tuple(record for record in records if record.claim.uid != claim.ref.uid), damaged=tuple(damaged)
    )
    devices: list[PlannedDevice] = []
    switches: dict[str, ModeSwitch] = {}
    for one, config in zip(wanted, configs, strict=True):
        view = views[one.gpu_uuid]
        if one.result.admin_access:
            action = _plan_admin(claim.ref, one, view)
            devices.append(PlannedDevice(result=one.result, known=view.known, action=action, time_slice=None))
            continue
        if one.result.device not in held:
            _check_policy(claim.ref, one, view)
        check_not_held(claim.ref, one, others.records)
        _check_beside_own(claim.ref, one, devices)
        if one.profile is None:
            action = _plan_whole(claim.ref, one, view, others, switches)
        else:
            action = _plan_partition(claim.ref, one, view, others, switches)
        devices.append(
            PlannedDevice(result=one.result, known=view.known, action=action, time_slice=plan_time_slice(one, config))
        )
    return PreparePlan(
        claim=claim.ref,
        pod_claim_name=claim.pod_claim_name,
        switches=tuple(switches[uuid] for uuid in sorted(switches)),
        devices=tuple(devices),
    )


def _check_policy(ref: ClaimRef, one: Wanted, view: GpuView) -> None:
    """A claim that was allocated before the policy changed may want what is not offered any more."""
    withheld = explain_withheld(view.rule, one.profile, mig_enabled=bool(view.mig_enabled))
    if withheld is not None:
        refuse(
            ref,
            one.result.device,
            f"its GPU {one.gpu_uuid} is {withheld}",
            "delete the claim so that it is allocated again, or change the policy",
        )


def _plan_admin(ref: ClaimRef, one: Wanted, view: GpuView) -> Action:
    """Admin access never creates, changes or destroys (invariant 4): it sees what lives."""
    if one.profile is None or one.placement is None:
        return UseWhole()
    live = one.find_live(view.described)
    if live is None or live.mig_uuid is None:
        refuse(
            ref,
            one.result.device,
            "admin access was asked for a partition that does not live, and admin access never makes one",
            "ask for the whole GPU with admin access, or wait until a workload holds the partition",
        )
    return UsePartition(profile=one.profile, live=live)


def _plan_whole(ref: ClaimRef, one: Wanted, view: GpuView, others: _Others, switches: dict[str, ModeSwitch]) -> Action:
    if view.mig_enabled:
        if view.instances:
            _refuse_occupied(ref, one, view.instances[0], others)
        if not view.known.gpu.resetless_mig:
            refuse(
                ref,
                one.result.device,
                f"GPU {one.gpu_uuid} is in MIG mode, which this model leaves only by a reset",
                f"drain the node, then `nvidia-smi -i {one.gpu_uuid} -mig 0` and reset the GPU",
            )
        switches[one.gpu_uuid] = ModeSwitch(known=view.known, enable=False, device=one.result.device)
    return UseWhole()


def _plan_partition(
    ref: ClaimRef, one: Wanted, view: GpuView, others: _Others, switches: dict[str, ModeSwitch]
) -> Action:
    profile, placement = one.profile, one.placement
    assert profile is not None
    assert placement is not None
    if view.rule.mode is Shape.STATIC:
        live = one.find_live(view.described)
        if live is None or live.mig_uuid is None:
            refuse(
                ref,
                one.result.device,
                "its GPU is set to static partitions and this one does not exist (any more)",
                "make it again, or delete the pod so that it gets another",
            )
        return UsePartition(profile=profile, live=live)
    for instance in view.instances:
        if overlap(instance.placement, placement):
            _refuse_occupied(ref, one, instance, others)
    if view.mig_enabled is None:
        refuse(ref, one.result.device, f"GPU {one.gpu_uuid} has no MIG", "delete the pod so that it gets another")
    if not view.mig_enabled:
        if not view.known.gpu.resetless_mig:
            refuse(
                ref,
                one.result.device,
                f"GPU {one.gpu_uuid} is not in MIG mode, which this model enters only by a reset",
                f"drain the node, then `nvidia-smi -i {one.gpu_uuid} -mig 1` and reset the GPU",
            )
        switches[one.gpu_uuid] = ModeSwitch(known=view.known, enable=True, device=one.result.device)
    return MakePartition(profile=profile, placement=placement)


def check_not_held(ref: ClaimRef, one: Wanted, others: Iterable[ClaimRecord]) -> None:
    """A device another claim holds, or that excludes one it holds, is refused until that claim is unprepared."""
    others = tuple(others)
    holder = find_holder(others, one.result.device, one.result.pool, besides=ref.uid)
    if holder is not None:
        _refuse_held(ref, one.result.device, one.result.device, holder)
    for record in others:
        for device in record.devices_on(one.gpu_uuid):
            if device.admin_access or device.device == one.result.device:
                continue
            if one.placement is None or _excludes(device, one.placement):
                _refuse_held(ref, one.result.device, device.device, record)


def _excludes(device: RecordedDevice, placement: Placement) -> bool:
    """Whether a recorded device (a whole GPU has no partitions) stands in the way of `placement` on its GPU."""
    return not device.partitions or any(overlap(p.placement, placement) for p in device.partitions)


def _check_beside_own(ref: ClaimRef, one: Wanted, planned: Sequence[PlannedDevice]) -> None:
    for other in planned:
        if other.known.gpu.uuid != one.gpu_uuid or other.result.admin_access:
            continue
        theirs = _planned_placement(other)
        if theirs is None or one.placement is None or overlap(theirs, one.placement):
            refuse(
                ref,
                one.result.device,
                f"the claim was also given {other.result.device}, and the two exclude each other",
                "delete the claim so that it is allocated again",
            )


def _planned_placement(device: PlannedDevice) -> Placement | None:
    match device.action:
        case UseWhole():
            return None
        case UsePartition(live=live):
            return live.placement
        case MakePartition(placement=placement):
            return placement


def _refuse_occupied(ref: ClaimRef, one: Wanted, instance: GpuInstance, others: _Others) -> NoReturn:
    """The slot holds an instance: another claim's, or one that nobody of ours made."""
    for record in others.records:
        for device in record.devices_on(one.gpu_uuid):
            if any(p.placement == instance.placement and p.ours for p in device.partitions):
                _refuse_held(ref, one.result.device, device.device, record)
    where = (
        f"GPU instance {instance.gi_id} of GPU {one.gpu_uuid} lies in memory slices {instance.placement.start} to "
        f"{instance.placement.start + instance.placement.size - 1}"
    )
    if others.damaged:
        refuse(
            ref,
            one.result.device,
            f"{where} and may belong to a claim whose record is damaged (UID {', '.join(others.damaged)})",
            "end that claim's pod, or repair its record, and compare again",
        )
    refuse(
        ref,
        one.result.device,
        f"{where} and was not made by Tesela",
        "destroy it, or set this GPU to static partitions in the policy file",
    )


def _refuse_held(ref: ClaimRef, device: str, held: str, holder: ClaimRecord) -> NoReturn:
    what = "it is" if held == device else f"{held} on the same GPU is"
    refuse(
        ref,
        device,
        f"{what} still held by claim {holder.claim}",
        "it is free once the kubelet has unprepared that claim",
    )
