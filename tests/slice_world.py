"""Records and pools for tests of slices."""

from __future__ import annotations

from tesela.core.geometry import plan_partitions
from tesela.core.model import ClaimRef
from tesela.core.naming import PartitionName, parse_device_name
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)
from tesela.core.slices.pool import render_pool
from tesela.core.slices.state import ApiAbilities, PoolState

NODE = "node-1"


def state(roster, **fields):
    return PoolState(pool=NODE, roster=roster, **fields)


def holding(gpu, device, *, claim="claim-1", admin_access=False):
    """The record of a claim that holds one device."""
    name = parse_device_name(device)
    partitions = ()
    if isinstance(name, PartitionName):
        wanted = (name.profile_id, name.start)
        partition = next(one for one in plan_partitions(gpu) if (one.profile.profile_id, one.placement.start) == wanted)
        partitions = (
            RecordedPartition(
                profile_id=partition.profile.profile_id,
                profile=partition.profile.name,
                placement=partition.placement,
                role=PartitionRole.CURRENT,
                state=PartitionState.PREPARED,
                ours=True,
            ),
        )
    return ClaimRecord(
        claim=ClaimRef(namespace="default", name=claim, uid=f"uid-of-{claim}"),
        state=ClaimState.PREPARED,
        devices=(
            RecordedDevice(
                request="gpu",
                pool=NODE,
                device=device,
                gpu_uuid=gpu.uuid,
                admin_access=admin_access,
                share_id=None,
                boot_id="boot-1",
                generation=1,
                partitions=partitions,
            ),
        ),
    )


def devices_of(pool_state, **abilities):
    """The published devices by name, in order."""
    pool = render_pool(pool_state, ApiAbilities(**abilities))
    return {device["name"]: device for content in pool.slices for device in content.devices}


def counters_of(pool_state, **abilities):
    pool = render_pool(pool_state, ApiAbilities(**abilities))
    return {one["name"]: one["counters"] for content in pool.slices for one in content.counter_sets}


def taints_of(device):
    return {(taint["key"], taint.get("value", "")) for taint in device.get("taints", ())}
