"""From a plan to the record that covers it: what must be on disk before the first effect.

Pure, and no decision: `prepare.py` has taken them all.
"""

from __future__ import annotations

from tesela.core.prepare import Action, MakePartition, PlannedDevice, PreparePlan, UsePartition, UseWhole
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)


def render_preparing(plan: PreparePlan, boot_id: str) -> ClaimRecord:
    """The record that must be on disk before the first effect: what will be made, without ids."""
    return ClaimRecord(
        claim=plan.claim,
        state=ClaimState.PREPARING,
        devices=tuple(_render_device(device, boot_id) for device in plan.devices),
        pod_claim_name=plan.pod_claim_name,
        grants=plan.grants,
    )


def _render_device(device: PlannedDevice, boot_id: str) -> RecordedDevice:
    return RecordedDevice(
        request=device.result.request,
        pool=device.result.pool,
        device=device.result.device,
        gpu_uuid=device.known.gpu.uuid,
        admin_access=device.result.admin_access,
        share_id=device.result.share_id,
        boot_id=boot_id,
        generation=device.known.generation,
        partitions=_render_partitions(device.action),
        time_slice=device.time_slice,
    )


def _render_partitions(action: Action) -> tuple[RecordedPartition, ...]:
    match action:
        case UseWhole():
            return ()
        case UsePartition(profile=profile, live=live):
            return (
                RecordedPartition(
                    profile_id=profile.profile_id,
                    profile=profile.name,
                    placement=live.placement,
                    role=PartitionRole.CURRENT,
                    state=PartitionState.PREPARED,
                    ours=False,
                    gi_id=live.gi_id,
                    ci_id=live.ci_id,
                    mig_uuid=live.mig_uuid,
                ),
            )
        case MakePartition(profile=profile, placement=placement):
            return (
                RecordedPartition(
                    profile_id=profile.profile_id,
                    profile=profile.name,
                    placement=placement,
                    role=PartitionRole.CURRENT,
                    state=PartitionState.PREPARING,
                    ours=True,
                ),
            )
