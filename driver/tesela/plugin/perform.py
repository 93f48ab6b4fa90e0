"""Perform a plan under its locks, or leave nothing of it behind.

The order is one that a crash may interrupt anywhere: *preparing* record, mode switches, partitions with their ids on
record, time slices, files, *prepared* record. When a step fails, what this call made is undone; where even that fails
the *preparing* record stays and covers it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from tesela.core.errors import ClaimRefused, NvmlError, TeselaError, TryAgain
from tesela.core.model import ClaimRef, GpuInstance, LivePartition, PreparedDevice
from tesela.core.prepare import MakePartition, PlannedDevice, PreparePlan, UsePartition
from tesela.core.preparing import render_preparing
from tesela.core.record import ClaimRecord, ClaimState, PartitionState, RecordedDevice
from tesela.core.release import find_grant, find_own_grant
from tesela.edge.telemetry.port import Phase
from tesela.plugin.deadline import Deadline
from tesela.plugin.late_calls import check_no_call
from tesela.plugin.mig_mode import switch_mig_mode
from tesela.plugin.node import Node
from tesela.plugin.release import has_effects, release_device, settle

log = logging.getLogger(__name__)


def perform(
    node: Node, plan: PreparePlan, records: Iterable[ClaimRecord], deadline: Deadline
) -> tuple[PreparedDevice, ...]:
    """The prepared devices. `records` are those the plan was made from.

    `node` begins no call of NVML after `deadline` (`Node.within`).
    """
    record = render_preparing(plan, node.host.get_boot_id())
    others = tuple(other for other in records if other.claim.uid != plan.claim.uid)
    _check_used(node, plan, others)
    if plan.has_effects:
        for device in record.devices:
            subject = f"claim {plan.claim.namespace}/{plan.claim.name}: device {device.device}"
            check_no_call(node, device.gpu_uuid, subject)
        _write_record(node, record, synced=False)
    effects = deadline.halve() if plan.has_effects else deadline  # the other half is for undoing them
    try:
        for switch in plan.switches:
            with node.telemetry.phase(Phase.MODE), node.mode_holds.noting(switch.known.gpu.uuid):
                switch_mig_mode(node.nvml, node.host, switch, plan.claim, effects)
        record = _make_partitions(node.within(effects), plan, record, others)
        for device in record.devices:
            if device.time_slice is not None:
                effects.check(f"the time slice of GPU {device.gpu_uuid}")
                with node.telemetry.phase(Phase.TIME_SLICE):
                    node.nvidia_smi.set_time_slice(device.gpu_uuid, device.time_slice)
        prepared = _as_prepared(record)
        with node.telemetry.phase(Phase.FILES):
            answer = node.workload.write(prepared, effects)
        _write_record(node, prepared)
    except TeselaError as error:
        undone = _roll_back(node, record, deadline, written=plan.has_effects)
        if isinstance(error, NvmlError):
            left = "nothing is left of the attempt" if undone else "the attempt is undone by the next call"
            raise TryAgain(
                f"claim {plan.claim.namespace}/{plan.claim.name}: NVML refused: {error}; {left}, the kubelet tries "
                "again by itself"
            ) from error
        raise
    log.info("claim %s: prepared %s", plan.claim, ", ".join(device.device for device in record.devices))
    return answer


def _check_used(node: Node, plan: PreparePlan, others: tuple[ClaimRecord, ...]) -> None:
    """A partition that somebody else made may have an id that is still granted, too. Admin access may see anything."""
    for planned in plan.devices:
        if isinstance(planned.action, UsePartition) and not planned.result.admin_access:
            holder = _find_holder(node, plan, planned, planned.action.live, others)
            if holder is not None:
                _refuse_id(plan.claim, planned, planned.action.live, holder, "it cannot be handed out")


def _make_partitions(
    node: Node, plan: PreparePlan, record: ClaimRecord, others: tuple[ClaimRecord, ...]
) -> ClaimRecord:
    """Create what the plan makes; the record with ids and UUIDs is on disk when this returns."""
    devices = list(record.devices)
    for position, planned in enumerate(plan.devices):
        if isinstance(planned.action, MakePartition):
            live = _create(node, plan.claim, planned, planned.action)
            holder = _find_holder(node, plan, planned, live, others)
            if holder is not None:
                _destroy(node, live)
                _refuse_id(plan.claim, planned, live, holder, "the new partition was destroyed again")
            devices[position] = _with_live(devices[position], live)
    made = replace(record, devices=tuple(devices))
    if made != record:
        _write_record(node, made, synced=False)
    return made


def _write_record(node: Node, record: ClaimRecord, *, synced: bool = True) -> None:
    with node.telemetry.phase(Phase.RECORD):
        node.records.write(record, synced=synced)


def _create(node: Node, ref: ClaimRef, planned: PlannedDevice, action: MakePartition) -> LivePartition:
    uuid = planned.known.gpu.uuid
    try:
        with node.telemetry.phase(Phase.CREATE):
            return node.partitions.create(uuid, action.profile, action.placement)
    except NvmlError as error:
        raise TryAgain(
            f"claim {ref.namespace}/{ref.name}: device {planned.result.device}: NVML does not make "
            f"{action.profile.name} at {action.placement.start} on GPU {uuid}: {error}; compare with `nvidia-smi mig "
            "-lgi`, the kubelet tries again by itself"
        ) from error


def _destroy(node: Node, live: LivePartition) -> None:
    node.partitions.destroy(
        GpuInstance(gpu_uuid=live.gpu_uuid, profile_id=live.profile_id, placement=live.placement, gi_id=live.gi_id)
    )


def _find_holder(
    node: Node, plan: PreparePlan, planned: PlannedDevice, live: LivePartition, others: tuple[ClaimRecord, ...]
) -> str | None:
    """Whose containers may open what has this GPU-instance id, in words; None where nobody's.

    Capability minors are a function of GPU, GI and CI ids, so they would open this partition.
    """
    boot_id = node.host.get_boot_id()
    holder = find_grant(others, live, boot_id)
    if holder is not None:
        return f"claim {holder.claim}"
    own = find_own_grant(plan.grants, live, boot_id, planned.result.base_request)
    return f"containers of this claim that use its request {own.request}" if own is not None else None


def _refuse_id(ref: ClaimRef, planned: PlannedDevice, live: LivePartition, holder: str, outcome: str) -> NoReturn:
    raise ClaimRefused(
        f"claim {ref.namespace}/{ref.name}: device {planned.result.device}: NVML handed out GPU instance id "
        f"{live.gi_id} of GPU {live.gpu_uuid}, which is still granted to {holder}, so {outcome}; delete that claim's "
        "pod"
    )


def _with_live(device: RecordedDevice, live: LivePartition) -> RecordedDevice:
    return replace(
        device,
        partitions=tuple(
            replace(partition, gi_id=live.gi_id, ci_id=live.ci_id, mig_uuid=live.mig_uuid)
            for partition in device.partitions
        ),
    )


def _as_prepared(record: ClaimRecord) -> ClaimRecord:
    devices = tuple(
        replace(
            device,
            partitions=tuple(replace(partition, state=PartitionState.PREPARED) for partition in device.partitions),
        )
        for device in record.devices
    )
    return replace(record, state=ClaimState.PREPARED, devices=devices)


def _roll_back(node: Node, record: ClaimRecord, deadline: Deadline, *, written: bool) -> bool:
    """Undo this call; False where the *preparing* record has to stay for that.

    `record` may lack ids of what was just made: the slots were seen empty, so they decide.
    """
    try:
        if written and has_effects(record):
            for device in record.devices:
                release_device(node, record, device, deadline)
        settle(node, record)
    except TeselaError as error:
        log.warning("claim %s: the failed attempt is not undone yet, the next call does it: %s", record.claim, error)
        return False
    return True
