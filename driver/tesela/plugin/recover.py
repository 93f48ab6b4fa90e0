"""Bring records, files and partitions back into agreement: at start, and when a GPU lost its partitions.

Half-done claims are undone or finished, prepared ones get their files back, files without record go. Each claim is
handled under its own locks, claims of different GPUs side by side, and a claim whose lock somebody holds is left to
its owner: two driver processes may overlap. Prepare waits for the recovery of its own GPUs only (`gate.py`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator

from tesela.core.errors import TeselaError, TryAgain
from tesela.core.record import ClaimRecord, ClaimState
from tesela.core.release import is_stale, render_interrupted, render_lost, render_renewed
from tesela.core.sweep import is_claim_uid
from tesela.edge.store.locks import FileLock
from tesela.edge.store.records import UnreadableRecord
from tesela.edge.telemetry.work import CLAIM_UID, Verb, working_on
from tesela.plugin.deadline import Deadline
from tesela.plugin.node import Node
from tesela.plugin.rebuild import rebuild_from_files, restore_lost, set_aside_and_write
from tesela.plugin.release import release_device, settle

log = logging.getLogger(__name__)

_CLAIM_TIMEOUT_S = 60.0


class InHand(TryAgain):
    """Somebody works on the claim, or has ended it meanwhile."""


class Recovery:
    """Recovers recorded claims, each GPU's in a thread of its own; `node.gate` opens a GPU when its claims are done."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._guard = threading.Lock()  # of `_threads`
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Read the records and begin. Damaged ones are rebuilt first, since all that follows asks the records."""
        listing = self._node.records.list()
        rebuilt = [record for damaged in listing.unreadable if (record := rebuild(self._node, damaged)) is not None]
        restored = remove_orphan_files(self._node)
        self.recover((*listing.records, *rebuilt, *restored))

    def recover(self, records: Iterable[ClaimRecord]) -> None:
        """Recover these claims. A claim on several GPUs is in the hands of its first GPU's thread, the others wait."""
        by_gpu: dict[str, list[ClaimRecord]] = {}
        for record in records:
            by_gpu.setdefault(record.gpu_uuids[0] if record.gpu_uuids else "", []).append(record)
        for gpu_uuid, claims in by_gpu.items():
            done = threading.Event()
            for touched in {gpu_uuid}.union(*(record.gpu_uuids for record in claims)):
                self._node.gate.close(touched, done)
            thread = threading.Thread(
                target=self._recover_all, args=(claims, done), name=f"recover-{gpu_uuid}", daemon=True
            )
            with self._guard:
                self._threads.append(thread)
                thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for all of it; False where that takes longer."""
        deadline = Deadline.after(timeout_s)
        with self._guard:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(deadline.left_s)
        with self._guard:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            return not self._threads

    def _recover_all(self, records: list[ClaimRecord], done: threading.Event) -> None:
        try:
            for record in records:
                recover_claim(self._node, record.claim.uid)
        finally:
            done.set()


def recover_claim(node: Node, claim_uid: str) -> bool:
    """Bring one claim into agreement. What cannot be done now is logged; the kubelet's next call does it.

    False where it was not done, or not needed: somebody has the claim in hand, or it has no record any more.
    """
    named = {CLAIM_UID: claim_uid}
    try:
        attempt_recovery(node, claim_uid)
    except InHand as error:
        log.info("claim %s is left to others: %s", claim_uid, error, extra=named)
        return False
    except TeselaError as error:
        log.warning("claim %s is not recovered yet: %s", claim_uid, error, extra=named)
        return False
    except Exception:
        # A fault of ours, met with one claim: the next ones of its GPU are recovered all the same.
        log.exception("claim %s is not recovered yet, which is a fault of the driver", claim_uid, extra=named)
        return False
    return True


def attempt_recovery(node: Node, claim_uid: str) -> None:
    """The same, but what cannot be done now is a TeselaError: InHand where others have the claim, or it has ended."""
    with hold_claim(node, claim_uid):
        record = node.records.read(claim_uid)
        if record is None:
            raise InHand("it has no record any more")
        with (
            working_on(Verb.RECOVER, record.claim),
            node.telemetry.operation(),
            node.hold_gpus(record.gpu_uuids, Deadline.after(_CLAIM_TIMEOUT_S)),
        ):
            _recover_locked(node, record, Deadline.after(_CLAIM_TIMEOUT_S))


@contextlib.contextmanager
def hold_claim(node: Node, claim_uid: str) -> Iterator[FileLock]:
    """The claim's lock for the length of the block. It is not waited for: InHand where somebody has it."""
    lock = node.locks.claim_lock(claim_uid)
    if not lock.acquire(0):
        raise InHand(f"it is in the hands of {lock.get_holder()}")
    try:
        yield lock
    finally:
        _let_go(node, claim_uid, lock)


def _let_go(node: Node, claim_uid: str, lock: FileLock) -> None:
    """Release a claim's lock. Its file goes with the claim: another process may have ended that just before."""
    try:
        if not node.records.path(claim_uid).exists():
            lock.discard()
    finally:
        lock.release()


def _recover_locked(node: Node, record: ClaimRecord, deadline: Deadline) -> None:
    boot_id, roster = node.host.get_boot_id(), node.lookout.roster
    stale = [d for d in record.devices if is_stale(d, roster.find(d.gpu_uuid), boot_id)]
    if record.state is not ClaimState.PREPARED:
        lost = any(d.partitions for d in stale) and any(grant.boot_id == boot_id for grant in record.grants)
        if lost and record.state is ClaimState.PREPARING:
            return  # until the kubelet ends it, see below
        log.warning("claim %s was left %s; undoing it", record.claim, record.state)
        for device in record.devices:
            release_device(node, record, device, deadline)
        settle(node, record)
        return
    if any(device.partitions for device in stale) or not node.lives(record):
        # Its partitions went with a boot, a reset, or by somebody's hand. Half done from here on: the kubelet's next
        # prepare makes them anew, its unprepare finds nothing to destroy. Until then, or a boot, the record stands for
        # the instance ids that running containers may still open.
        log.warning("claim %s lost its partitions to a boot, a reset of the GPU or somebody's hand", record.claim)
        node.workload.remove(record.claim.uid)
        node.records.write(render_lost(render_interrupted(record, roster, boot_id)))
        return
    node.workload.write(renew(node, record) if stale else record)


def renew(node: Node, record: ClaimRecord) -> ClaimRecord:
    """Bring the record of a claim of whole GPUs up to this boot and generation. The caller holds the locks."""
    renewed = render_renewed(record, node.lookout.roster, node.host.get_boot_id())
    for device in renewed.devices:
        if device.time_slice is not None:
            # It went with the boot, while the container that asked for it comes back.
            node.nvidia_smi.set_time_slice(device.gpu_uuid, device.time_slice)
    node.records.write(renewed)
    return renewed


def rebuild(node: Node, damaged: UnreadableRecord) -> ClaimRecord | None:
    """Rebuild a damaged record from its CDI file, where it has one and nobody holds its claim.

    One of another release is left to that release: its CDI file, too, may hold less than it does.
    """
    log.error("%s: %s", damaged.path, damaged.problem)
    if damaged.foreign:
        node.announcer.announce_unreadable(f"{damaged.problem}; until then its claim stays as it is")
        return None
    try:
        lock = node.locks.claim_lock(damaged.uid)
        if not lock.acquire(0):
            return None
    except TeselaError as error:
        log.error("record %s stays as it is: %s", damaged.path, error)  # noqa: TRY400 -- the sentence is enough
        return None
    try:
        record = rebuild_from_files(node, damaged.uid)
        if record is not None:
            set_aside_and_write(node, record)
        else:
            node.announcer.announce_unreadable(
                f"{damaged.problem}; its CDI file does not tell it either: it is rebuilt from its claim once the "
                "kubelet calls for that, and until then the partitions that it may hold are left alone"
            )
    except TeselaError as error:
        log.error("record %s is not rebuilt: %s", damaged.path, error)  # noqa: TRY400 -- likewise
        return None
    finally:
        _let_go(node, damaged.uid, lock)
    return record


def remove_orphan_files(node: Node) -> tuple[ClaimRecord, ...]:
    """Remove files of claims that have no record, readable or not, nobody at work on them, and nothing that lives.

    Where a partition of such a claim lives, its record went by somebody's hand: returns those that were restored.
    Ours are named by claim UIDs, which are UUIDs. Others put files beside them (the folder of KEP-5304's metadata is
    the name that every driver's helper gives it): what is named otherwise is not ours and stays.
    """
    listing = node.records.list()
    known = {record.claim.uid for record in listing.records} | {damaged.uid for damaged in listing.unreadable}
    orphans = [claim_uid for claim_uid in node.workload.list_claims() if claim_uid not in known]
    if foreign := [name for name in orphans if not is_claim_uid(name)]:
        log.warning("left alone beside the files of claims, as no UID of a claim: %s", ", ".join(foreign))
    restored = [_remove_orphan(node, claim_uid) for claim_uid in orphans if claim_uid not in foreign]
    return tuple(record for record in restored if record is not None)


def _remove_orphan(node: Node, claim_uid: str) -> ClaimRecord | None:
    try:
        return remove_orphan(node, claim_uid)
    except InHand:
        return None
    except TeselaError as error:
        log.warning("files of claim %s stay: %s", claim_uid, error)
        return None


def remove_orphan(node: Node, claim_uid: str) -> ClaimRecord | None:
    """Remove the files of one such claim, or restore its record, which is returned.

    TeselaError where that cannot be done; InHand where somebody has the claim, or it has a record by now.
    """
    with hold_claim(node, claim_uid):
        if node.records.path(claim_uid).exists():
            raise InHand("it has a record")
        if claim_uid not in node.workload.list_claims():
            raise InHand("it has been given back meanwhile")
        restored = restore_lost(node, claim_uid)
        if restored is None:
            node.workload.remove(claim_uid)
            log.warning("removed the files of claim %s, which has no record", claim_uid)
        return restored
