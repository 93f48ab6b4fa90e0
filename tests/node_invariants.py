"""The invariants (docs/invariants.md) that can be seen from outside a driver, checked on a `World` between two steps.

They hold once the driver has had its look (a reset that nobody noticed yet breaks promises by itself).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tesela.core.geometry import overlap
from tesela.core.record import ClaimRecord, ClaimState, RecordedDevice, RecordedPartition
from tesela.core.release import is_stale
from tesela.edge.simulator.state import GpuInstanceState
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore


def check_invariants(world: Any) -> None:
    """Invariants 1 to 4 and 9, and that every promise given to the kubelet is on disk (5)."""
    records = RecordStore(world.state_dir).list().records
    live = {(gpu.uuid, instance.gi_id): instance for gpu in world.machine.snapshot().gpus for instance in gpu.instances}
    _check_partitions_have_records(world, records, live)
    _check_records_have_partitions(world, records, live)
    _check_files(world, records)
    _check_exclusion(records)
    _check_foreign(world, live)
    _check_promises(world, records)
    _check_grants(world, records)


def _partitions(records: tuple[ClaimRecord, ...]) -> Iterator[tuple[ClaimRecord, RecordedDevice, RecordedPartition]]:
    for record in records:
        for device in record.devices:
            for partition in device.partitions:
                yield record, device, partition


def _is_current(world: Any, device: RecordedDevice) -> bool:
    """Whether the record's facts are of this boot and generation, by what is on disk, and its GPU is there."""
    known = RosterStore(world.state_dir).read_roster().find(device.gpu_uuid)
    return known is not None and known.present and not is_stale(device, known, world.machine.snapshot().boot_id)


def _check_partitions_have_records(world, records, live: dict[tuple[str, int], GpuInstanceState]) -> None:
    """1: every live partition of ours lies inside a record's GPU, placement and profile."""
    damaged = RecordStore(world.state_dir).list().unreadable
    slots = {
        (device.gpu_uuid, partition.profile_id, partition.placement)
        for _, device, partition in _partitions(records)
        if partition.ours
    }
    for (gpu_uuid, gi_id), instance in live.items():
        if (gpu_uuid, gi_id) in world.foreign or damaged:
            continue
        slot = (gpu_uuid, instance.profile_id, instance.placement)
        assert slot in slots, f"GPU instance {gi_id} of {gpu_uuid} has no record"


def _check_records_have_partitions(world, records, live) -> None:
    """1: every prepared record has its partition, under its UUID and id."""
    for record, device, partition in _partitions(records):
        if record.state is not ClaimState.PREPARED or device.admin_access or not _is_current(world, device):
            continue
        if device.gpu_uuid in world.unnoticed:
            continue
        instance = live.get((device.gpu_uuid, partition.gi_id))
        uuids = [compute.mig_uuid for compute in instance.compute_instances] if instance else []
        assert uuids == [partition.mig_uuid], f"{record.claim} has no partition {partition.mig_uuid}"
        assert instance.placement == partition.placement


def _check_files(world, records) -> None:
    """2: prepared records have their CDI file, with the UUIDs of the record; every CDI file has a record."""
    files = CdiFiles(world.cdi_dir)
    known = {record.claim.uid for record in records}
    known |= {damaged.uid for damaged in RecordStore(world.state_dir).list().unreadable}
    assert set(files.list_ours()) <= known, "a CDI file has no record"
    for record in records:
        if record.state is not ClaimState.PREPARED or not all(_is_current(world, one) for one in record.devices):
            continue
        if record.adopted and files.list_their_names(record.claim.uid):
            assert files.read(record.claim.uid) is None, f"two CDI files name the devices of {record.claim}"
            continue
        document = files.read(record.claim.uid)
        assert document is not None, f"prepared {record.claim} has no CDI file"
        text = json.dumps(document)
        for device in record.devices:
            expected = device.current.mig_uuid if device.current else device.gpu_uuid
            assert f"{expected}" in text, f"the CDI file of {record.claim} does not name {expected}"


def _check_exclusion(records) -> None:
    """3: no memory slice in two claims, and no whole GPU beside a partition of it."""
    held = [
        (record, device, device.partitions[0].placement if device.partitions else None)
        for record in records
        for device in record.devices
        if not device.admin_access
    ]
    for position, (record, device, placement) in enumerate(held):
        for other, theirs, their_placement in held[position + 1 :]:
            if device.gpu_uuid != theirs.gpu_uuid:
                continue
            both = f"{device.device} of {record.claim} and {theirs.device} of {other.claim}"
            assert placement is not None, both
            assert their_placement is not None, both
            assert not overlap(placement, their_placement), both


def _check_foreign(world, live) -> None:
    """4: what others made is still there."""
    assert world.foreign <= live.keys(), "a partition of somebody else was destroyed"


def _check_promises(world, records) -> None:
    """5: what the kubelet was told stands in a record, prepared or lost with its GPU."""
    by_uid = {record.claim.uid: record for record in records}
    damaged = {one.uid for one in RecordStore(world.state_dir).list().unreadable}
    for uid in world.promised.keys() - damaged:
        assert uid in by_uid, f"the record of promised claim {uid} is gone"
        record = by_uid[uid]
        touched = {*record.gpu_uuids, *(grant.gpu_uuid for grant in record.grants)}
        lost = bool(touched & world.lost_gpus)
        assert record.state is ClaimState.PREPARED or lost, f"promised {record.claim} is {record.state}"


def _check_grants(world, records) -> None:
    """9: no prepared claim has an id that containers of another one may open, unless as the same partition (admin)."""
    for record, device, partition in _partitions(records):
        if record.state is not ClaimState.PREPARED or partition.gi_id is None or not _is_current(world, device):
            continue
        key = (device.gpu_uuid, partition.gi_id)
        for uid, mig_uuid in world.granted.get(key, {}).items():
            same = uid == record.claim.uid or mig_uuid == partition.mig_uuid
            assert same, f"GPU instance id {key} of {record.claim} is still granted to {uid}"
