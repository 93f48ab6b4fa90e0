"""What a sweep makes of a node: what was found, set beside what the records say, gives mismatches and repairs.

Pure, and the only place that decides. A repair names one claim of ours and nothing else, so that what no record and no
file of ours speaks of cannot be touched: it is reported. How a repair is done, under which locks, and what it may
destroy then, is decided again by those who do it (`plugin/sweep.py`, `core/release.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from tesela.core.geometry import find_profile
from tesela.core.model import LivePartition, Shape
from tesela.core.record import ClaimRecord, ClaimState, RecordedDevice
from tesela.core.release import is_stale, list_foreign
from tesela.core.roster import KnownGpu, Roster
from tesela.core.shape import PartitionSource, Policy, plan_shape

GONE_S: Final = 600.0
"""So long a claim must be missing from the API, by two answers of it, before what it holds is given back."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class MismatchKind(StrEnum):
    """What may not fit. The values are the label `kind` of the metric tesela_orphans."""

    FOREIGN_PARTITION = "foreign-partition"
    BARE_INSTANCE = "bare-instance"
    SPLIT_INSTANCE = "split-instance"
    DISPLACED_PARTITION = "displaced-partition"
    LOST_PARTITION = "lost-partition"
    HALF_DONE_CLAIM = "half-done-claim"
    STALE_RECORD = "stale-record"
    UNREADABLE_RECORD = "unreadable-record"
    RECORD_WITHOUT_CLAIM = "record-without-claim"
    MISSING_FILES = "missing-files"
    FILES_WITHOUT_RECORD = "files-without-record"
    STRANGE_FILE = "strange-file"
    MIG_MODE = "mig-mode"
    PENDING_MIG_MODE = "pending-mig-mode"
    TIME_SLICE = "time-slice"


class Outcome(StrEnum):
    """What became of a mismatch: not ours to repair, or not yet; repaired; or a repair that did not work."""

    REPORTED = "reported"
    REPAIRED = "repaired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverClaim:
    """Undo a half-done claim, write missing files, or note that partitions are lost: as after a crash."""

    claim_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRecord:
    """Rebuild a damaged record from what else is known of its claim."""

    claim_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFiles:
    """Remove the files of a claim that has no record; or restore that, where a partition of it lives."""

    claim_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Unprepare a claim that the API does not know any more."""

    claim_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTimeSlice:
    """Set again the interval that a prepared claim was given."""

    claim_uid: str


Repair: TypeAlias = RecoverClaim | RebuildRecord | RemoveFiles | GiveBack | ApplyTimeSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One thing that does not fit; `message` is a sentence for people. GPU and claim are empty where none is meant."""

    kind: MismatchKind
    message: str
    gpu_uuid: str = ""
    claim_uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRepair:
    """A mismatch and what is done about it; None: it is reported."""

    mismatch: Mismatch
    repair: Repair | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSight:
    """One GPU that answered. The modes are None on a GPU without MIG.

    `time_slice` is the interval in force, "" where it was not asked for, None where it cannot be read.
    """

    live: tuple[LivePartition, ...] = ()
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    time_slice: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSight:
    """What the API said about the claim of a record.

    `gone_for_s`: None where it knows the claim; else how long ago it first said that it does not (0: just now).
    `holders` are the processes on the claim's devices, None where that cannot be told; asked for gone claims only.
    """

    gone_for_s: float | None = None
    holders: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one sweep saw.

    `records` are those from before and after the look at the GPUs (the later one where a claim is in both), so that
    what comes or goes meanwhile is never taken for somebody else's. `steady` are the claims whose record was the same
    both times: of the others, which are under way, nothing is concluded. `gpus` has the GPUs that answered, `claims`
    what the API answered: of what is in neither, nothing is known and nothing concluded. `files` are the claims, by
    the names of files and folders of ours, that have any file; `complete` those that have all of them.
    """

    boot_id: str
    roster: Roster
    policy: Policy
    records: tuple[ClaimRecord, ...] = ()
    steady: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    complete: frozenset[str] = frozenset()
    gpus: Mapping[str, GpuSight] = field(default_factory=dict)
    claims: Mapping[str, ClaimSight] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A mismatch and what became of it; `detail` says why a repair failed."""

    mismatch: Mismatch
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep found. `began_s` are Unix seconds; `unknown` are sentences about what could not be compared."""

    began_s: int
    took_s: float
    found: tuple[Found, ...] = ()
    unknown: tuple[str, ...] = ()

    def count_standing(self) -> dict[MismatchKind, int]:
        """How many mismatches of each kind stand after the sweep: repaired ones do not. Every kind is there."""
        standing = [one.mismatch.kind for one in self.found if one.outcome is not Outcome.REPAIRED]
        return {kind: standing.count(kind) for kind in MismatchKind}


def is_claim_uid(name: str) -> bool:
    """Whether the API may have given this UID: 8-4-4-4-12 hexadecimal digits. Files named otherwise are not ours."""
    return _UUID.fullmatch(name) is not None


def plan_sweep(sight: Sight) -> tuple[PlannedRepair, ...]:
    """All mismatches, those of GPUs first, then of claims by UID, then of files."""
    gpus = (one for known in sight.roster.gpus for one in _plan_gpu(sight, known))
    steady = (record for record in sight.records if record.claim.uid in sight.steady)
    claims = (one for record in steady for one in _plan_claim(sight, record))
    return (*gpus, *claims, *_plan_files(sight))


def _plan_gpu(sight: Sight, known: KnownGpu) -> Iterator[PlannedRepair]:
    seen = sight.gpus.get(known.gpu.uuid)
    if seen is None or sight.policy.find_rule(known).mode is Shape.IGNORE:
        return  # what others do with a GPU that is left to them is theirs
    offered = plan_shape(known, sight.policy).partitions is PartitionSource.STATIC
    for live in list_foreign(known.gpu.uuid, seen.live, sight.records):
        if not (offered and live.mig_uuid is not None):
            yield PlannedRepair(mismatch=_describe_foreign(sight, known, live))
    if seen.mig_enabled != seen.mig_pending:
        yield _report(
            MismatchKind.PENDING_MIG_MODE,
            f"MIG mode of {_name(known)} is {_mode(seen.mig_enabled)} and its next reset makes it "
            f"{_mode(seen.mig_pending)}: `nvidia-smi -i {known.gpu.uuid} -mig {int(bool(seen.mig_enabled))}` keeps it "
            "as it is",
            known,
        )


def _describe_foreign(sight: Sight, known: KnownGpu, live: LivePartition) -> Mismatch:
    profile = find_profile(known.gpu, live.profile_id)
    what = f"{profile.name if profile else f'profile {live.profile_id}'} at {live.placement.start} of {_name(known)}"
    whose = "no record of ours speaks of it"
    if sight.unreadable:
        whose += f", or a damaged one does (claim {', '.join(sight.unreadable)})"
    fenced = f"{whose}; what overlaps it is tainted until it goes: `nvidia-smi mig -dgi -gi {live.gi_id}`"
    if live.ci_id is None:
        kind, stands = MismatchKind.BARE_INSTANCE, f"GPU instance {live.gi_id} without compute instance"
    elif live.mig_uuid is None:
        kind, stands = MismatchKind.SPLIT_INSTANCE, f"GPU instance {live.gi_id} with several compute instances"
    else:
        kind, stands = MismatchKind.FOREIGN_PARTITION, f"partition {live.mig_uuid} (GPU instance {live.gi_id})"
    return Mismatch(kind=kind, message=f"{stands}, {what}: {fenced}", gpu_uuid=known.gpu.uuid)


def _plan_claim(sight: Sight, record: ClaimRecord) -> Iterator[PlannedRepair]:
    seen = sight.claims.get(record.claim.uid)
    if seen is not None and seen.gone_for_s is not None:
        yield _plan_gone(record, seen.gone_for_s, seen.holders)
    if record.state is not ClaimState.PREPARED:
        yield from _plan_half_done(sight, record)
        return
    stale = [one for one in record.devices if is_stale(one, sight.roster.find(one.gpu_uuid), sight.boot_id)]
    lost = [*_list_missing(sight, record), *(one for one in stale if one.partitions)]
    recover = RecoverClaim(claim_uid=record.claim.uid)
    if lost:
        yield _of_claim(
            MismatchKind.LOST_PARTITION,
            record,
            f"claim {record.claim}: {', '.join(dict.fromkeys(one.device for one in lost))} does not live any more",
            recover,
        )
    elif stale:
        yield _of_claim(MismatchKind.STALE_RECORD, record, f"claim {record.claim}: written before a boot", recover)
    elif record.claim.uid not in sight.complete:
        yield _of_claim(MismatchKind.MISSING_FILES, record, f"claim {record.claim}: files of it are gone", recover)
    for device in record.devices:
        if device not in stale and device.gpu_uuid in sight.gpus:
            yield from _plan_device(record, device, sight.gpus[device.gpu_uuid])


def _plan_gone(record: ClaimRecord, gone_for_s: float, holders: tuple[str, ...] | None) -> PlannedRepair:
    said = f"claim {record.claim} is not in the API any more, and nobody unprepared it"
    if holders is None:
        why = "whether a process uses its devices cannot be told, so they are left"
    elif holders:
        why = f"its devices are used by {', '.join(holders)}; end that, or let the kubelet end its pod"
    elif gone_for_s < GONE_S:
        why = f"given back once that was so for {GONE_S / 60:.0f} minutes"
    else:
        return _of_claim(
            MismatchKind.RECORD_WITHOUT_CLAIM,
            record,
            f"{said} for {gone_for_s / 60:.0f} minutes",
            GiveBack(claim_uid=record.claim.uid),
        )
    return _of_claim(MismatchKind.RECORD_WITHOUT_CLAIM, record, f"{said}: {why}")


def _plan_half_done(sight: Sight, record: ClaimRecord) -> Iterator[PlannedRepair]:
    """What is left of a claim for its grants alone is no mismatch; its kubelet ends it."""
    if any(grant.boot_id == sight.boot_id for grant in record.grants):
        if record.devices:
            yield _of_claim(
                MismatchKind.LOST_PARTITION,
                record,
                f"claim {record.claim} lost partitions while its containers may run: delete its pod",
            )
        return
    yield _of_claim(
        MismatchKind.HALF_DONE_CLAIM,
        record,
        f"claim {record.claim} was left {record.state}",
        RecoverClaim(claim_uid=record.claim.uid),
    )


def _list_missing(sight: Sight, record: ClaimRecord) -> Iterator[RecordedDevice]:
    """Devices with a partition that its GPU, which answered, does not have under its UUID."""
    for device in record.devices:
        seen = sight.gpus.get(device.gpu_uuid)
        live = {one.mig_uuid for one in seen.live} if seen is not None else set()
        if seen is not None and any(partition.mig_uuid not in live for partition in device.partitions):
            yield device


def _plan_device(record: ClaimRecord, device: RecordedDevice, seen: GpuSight) -> Iterator[PlannedRepair]:
    where = f"claim {record.claim}: device {device.device} of GPU {device.gpu_uuid}"
    for partition in device.partitions:
        taken = next((one for one in seen.live if partition.matches(one) and one.mig_uuid != partition.mig_uuid), None)
        if taken is not None and taken.mig_uuid is not None:
            yield _of_claim(
                MismatchKind.DISPLACED_PARTITION,
                record,
                f"{where}: {taken.mig_uuid} (GPU instance {taken.gi_id}) stands in the place of "
                f"{partition.mig_uuid}; it is left alone, destroy it or delete the claim's pod",
                device=device,
            )
    wants_mig = bool(device.partitions)
    if seen.mig_enabled is not None and seen.mig_enabled != wants_mig and not device.admin_access:
        yield _of_claim(
            MismatchKind.MIG_MODE,
            record,
            f"{where} needs MIG mode {_mode(wants_mig)}, and it is {_mode(seen.mig_enabled)}: delete the claim's pod, "
            "a later claim switches it",
            device=device,
        )
    if device.time_slice is not None and seen.time_slice and seen.time_slice != device.time_slice:
        yield _of_claim(
            MismatchKind.TIME_SLICE,
            record,
            f"{where} was given the time slice {device.time_slice}, and it is {seen.time_slice}",
            ApplyTimeSlice(claim_uid=record.claim.uid),
            device=device,
        )


def _plan_files(sight: Sight) -> Iterator[PlannedRepair]:
    for uid in sight.unreadable:
        yield PlannedRepair(
            mismatch=Mismatch(
                kind=MismatchKind.UNREADABLE_RECORD, message=f"the record of claim {uid} is damaged", claim_uid=uid
            ),
            repair=RebuildRecord(claim_uid=uid),
        )
    known = {record.claim.uid for record in sight.records}.union(sight.unreadable)
    for name in sorted(sight.files - known):
        if is_claim_uid(name):
            message = f"claim {name} has files and no record"
            yield PlannedRepair(
                mismatch=Mismatch(kind=MismatchKind.FILES_WITHOUT_RECORD, message=message, claim_uid=name),
                repair=RemoveFiles(claim_uid=name),
            )
        else:
            message = f"{name!r} lies beside the files of claims and is no UID of a claim: left alone"
            yield PlannedRepair(mismatch=Mismatch(kind=MismatchKind.STRANGE_FILE, message=message))


def _report(kind: MismatchKind, message: str, known: KnownGpu) -> PlannedRepair:
    return PlannedRepair(mismatch=Mismatch(kind=kind, message=message, gpu_uuid=known.gpu.uuid))


def _of_claim(
    kind: MismatchKind,
    record: ClaimRecord,
    message: str,
    repair: Repair | None = None,
    *,
    device: RecordedDevice | None = None,
) -> PlannedRepair:
    mismatch = Mismatch(
        kind=kind, message=message, gpu_uuid=device.gpu_uuid if device else "", claim_uid=record.claim.uid
    )
    return PlannedRepair(mismatch=mismatch, repair=repair)


def _name(known: KnownGpu) -> str:
    return f"{known.name} ({known.gpu.uuid})"


def _mode(enabled: bool | None) -> str:
    return "on" if enabled else "off"
