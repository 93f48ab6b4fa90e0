"""A record that cannot be read, or is gone, is rebuilt from what else is known of the claim.

First its CDI file, which carries the whole record; else the claim's allocation and the partitions that live. A damaged
file is set aside under the claim's UID. Until one of them serves, the claim's own calls fail with a sentence and
everything else works.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from tesela.core.config import DeviceConfig, resolve_config
from tesela.core.errors import (
    ApiError,
    ApiNotFound,
    ClaimRefused,
    DocumentError,
    NvmlError,
    OtherRelease,
    StateError,
    TryAgain,
)
from tesela.core.model import ClaimRef, Shape
from tesela.core.prepare import check_not_held
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)
from tesela.core.wanted import Wanted, plan_time_slice, plan_wanted
from tesela.edge.documents.claim import decode_claim
from tesela.edge.documents.config import decode_configs
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.plugin.deadline import Deadline
from tesela.plugin.late_calls import check_no_call
from tesela.plugin.node import Node

log = logging.getLogger(__name__)


def read_or_rebuild(node: Node, ref: ClaimRef, deadline: Deadline) -> ClaimRecord | None:
    """The claim's record, rebuilt where its file is damaged or gone. The caller holds the claim's lock and no GPU's.

    StateError with a sentence where it is damaged and nothing to rebuild it from is within reach. OtherRelease where
    another release wrote it: that is no damage, and what it says more than we can read must not be lost.
    """
    try:
        return node.records.read(ref.uid) or restore_lost(node, ref.uid)
    except OtherRelease as error:
        raise OtherRelease(f"claim {ref.namespace}/{ref.name}: {error}; nothing of it is touched") from error
    except StateError as error:
        rebuilt = rebuild_from_files(node, ref.uid) or _rebuild_from_claim(node, ref, deadline)
        if rebuilt is None and _was_cut_off(node, ref.uid):
            log.warning("claim %s: its record is an empty file, as a power cut leaves it; nothing of it lives", ref)
            node.records.remove(ref.uid)
            return None
        if rebuilt is None:
            raise StateError(
                f"claim {ref.namespace}/{ref.name}: {error}; neither its CDI file nor its allocation is left to rebuild"
                " the record from: compare `nvidia-smi mig -lgi` with the other records and remove the file by hand"
            ) from error
        set_aside_and_write(node, rebuilt)
        return rebuilt


def _was_cut_off(node: Node, claim_uid: str) -> bool:
    """Whether the power went before the record's bytes were on disk: it took every partition with it.

    A process that dies leaves whole files, for they are renamed into place.
    """
    return node.records.path(claim_uid).stat().st_size == 0


def list_holders(node: Node) -> tuple[tuple[ClaimRecord, ...], tuple[str, ...]]:
    """All records, damaged ones as their CDI files have them, and the UIDs of the claims of which nothing is known."""
    listing = node.records.list()
    copies = {one.uid: rebuild_from_files(node, one.uid) for one in listing.unreadable}
    known = tuple(copy for copy in copies.values() if copy is not None)
    return (*listing.records, *known), tuple(uid for uid, copy in copies.items() if copy is None)


def rebuild_from_files(node: Node, claim_uid: str) -> ClaimRecord | None:
    """The record that the claim's CDI file carries, None without one. Written by nobody yet."""
    return node.workload.read_record(claim_uid)


def restore_lost(node: Node, claim_uid: str) -> ClaimRecord | None:
    """Write the record of a claim that has none any more while a partition of its CDI file's record lives.

    We remove CDI files before records, so the record went by somebody's hand, and without it the partition would be
    nobody's. The UUID proves that it is the one. TryAgain where its GPU does not answer. The caller holds the claim's
    lock.
    """
    record = rebuild_from_files(node, claim_uid)
    if record is None or not _list_recorded_uuids([record]) & _list_live_uuids(node, record):
        return None
    node.records.write(record)
    log.warning("claim %s: its record was gone and its partition lives; it is restored from its CDI file", record.claim)
    return record


def _list_live_uuids(node: Node, record: ClaimRecord) -> frozenset[str]:
    roster = node.lookout.roster
    gpus = [known for uuid in record.gpu_uuids if (known := roster.find(uuid)) is not None and known.present]
    try:
        return frozenset(live.mig_uuid for known in gpus for live in node.list_live(known) if live.mig_uuid is not None)
    except NvmlError as error:
        raise TryAgain(
            f"claim {record.claim.namespace}/{record.claim.name}: its record is gone, and whether its partition lives "
            f"cannot be asked: {error}; the kubelet tries again by itself"
        ) from error


def set_aside_and_write(node: Node, record: ClaimRecord) -> None:
    """Put a rebuilt record in place of the damaged file, which is kept. The caller holds the claim's lock."""
    aside = node.records.set_aside(record.claim.uid)
    node.records.write(record)
    sentence = f"claim {record.claim}: its record was damaged and is rebuilt; the old file is kept as {aside}"
    log.warning("%s", sentence)
    node.announcer.announce_set_aside(sentence, record.claim)


def _rebuild_from_claim(node: Node, ref: ClaimRef, deadline: Deadline) -> ClaimRecord | None:
    """What the allocation says, with the partitions that live in its slots and belong to no other record.

    A slot where nothing lives, and a device that another claim holds by now, leave the record half done, so that
    nothing is ever handed out unmade or twice.
    """
    try:
        obj = node.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        claim = decode_claim(obj)
        wanted = plan_wanted(claim, node.lookout.roster, pool=node.pool) if claim.ref.uid == ref.uid else ()
        configs = decode_configs(claim)
        resolved = [resolve_config(claim, configs, one.result, whole=one.profile is None) for one in wanted]
    except (ApiNotFound, ClaimRefused, DocumentError):
        return None
    except ApiError as error:
        raise StateError(f"claim {ref}: its record is damaged and its allocation cannot be read: {error}") from error
    if not wanted:
        return None
    with node.hold_gpus({one.gpu_uuid for one in wanted}, deadline):
        for one in wanted:
            check_no_call(node, one.gpu_uuid, f"claim {ref.namespace}/{ref.name}: device {one.result.device}")
        others = tuple(record for record in list_holders(node)[0] if record.claim.uid != ref.uid)
        taken = _list_recorded_uuids(others)
        if node.workload.has_theirs(ref.uid):
            # NVIDIA's driver prepared it, and nothing tells any more whether it made the partitions: they stay.
            theirs = [live for one in wanted for live in node.list_live(one.known)]
            taken |= {live.mig_uuid for live in theirs if live.mig_uuid is not None}
        devices = tuple(_rebuild_device(node, one, config, taken) for one, config in zip(wanted, resolved, strict=True))
    complete = all(p.mig_uuid is not None for device in devices for p in device.partitions)
    return ClaimRecord(
        claim=claim.ref,
        state=ClaimState.PREPARED if complete and _is_free(claim.ref, wanted, others) else ClaimState.UNPREPARING,
        devices=devices,
        pod_claim_name=claim.pod_claim_name,
        adopted=node.workload.has_theirs(ref.uid),
    )


def _is_free(ref: ClaimRef, wanted: Iterable[Wanted], others: tuple[ClaimRecord, ...]) -> bool:
    try:
        for one in wanted:
            if not one.result.admin_access:
                check_not_held(ref, one, others)
    except ClaimRefused:
        return False
    return True


def _list_recorded_uuids(records: Iterable[ClaimRecord]) -> frozenset[str]:
    return frozenset(
        partition.mig_uuid
        for record in records
        for device in record.devices
        for partition in device.partitions
        if partition.mig_uuid is not None and partition.ours
    )


def _rebuild_device(node: Node, one: Wanted, config: DeviceConfig, taken: frozenset[str]) -> RecordedDevice:
    device = RecordedDevice(
        request=one.result.request,
        pool=one.result.pool,
        device=one.result.device,
        gpu_uuid=one.gpu_uuid,
        admin_access=one.result.admin_access,
        share_id=one.result.share_id,
        boot_id=node.host.get_boot_id(),
        generation=one.known.generation,
        time_slice=plan_time_slice(one, config),
    )
    if one.profile is None or one.placement is None:
        return device
    live = one.find_live(node.list_live(one.known))
    made = node.policy.find_rule(one.known).mode is not Shape.STATIC and not one.result.admin_access
    ours = made and live is not None and live.mig_uuid not in taken
    partition = RecordedPartition(
        profile_id=one.profile.profile_id,
        profile=one.profile.name,
        placement=one.placement,
        role=PartitionRole.CURRENT,
        state=PartitionState.PREPARED,
        ours=ours,
        gi_id=live.gi_id if live is not None else None,
        ci_id=live.ci_id if live is not None else None,
        mig_uuid=live.mig_uuid if live is not None else None,
    )
    return replace(device, partitions=(partition,))
