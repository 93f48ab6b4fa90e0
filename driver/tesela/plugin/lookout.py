"""Keep the roster true: look at the machine, compare with what is on disk, write what changed.

This file writes the roster, and `tesela forget` does. Two driver processes may look at once, so reading and writing
happen under the roster's lock, which is held for the disk alone, and what counts is the file. A GPU whose generation is
to rise is held back, looked at again under its own lock, and that lock is kept until the new generation is on disk,
because a prepare or unprepare may be halfway through: each GPU by itself, so that one that hangs holds up no other. Its
entry says which boot and module load it takes account of, so that a GPU held back is not forgotten.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tesela.core.errors import NvmlError, OtherRelease, StateError, TryAgain
from tesela.core.model import GpuInstance, Inventory, LivePartition
from tesela.core.record import ClaimRecord, ClaimState, RecordedPartition
from tesela.core.roster import EMPTY_ROSTER, KnownGpu, Roster, plan_roster, render_epoch
from tesela.core.roster_rebuild import choose_newest, renew_generations
from tesela.edge.host.host import Host
from tesela.edge.nvml.port import Nvml
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.announce import UNHEARD, Announces
from tesela.plugin.inventory import discover
from tesela.plugin.partition import Partitions

log = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 10.0
_GPU_WAIT_S = 3.0
"""Whoever works on a GPU notes a reload himself, so a look need not insist."""


class Lookout:
    """The one that looks; one thread at a time calls `refresh`.

    `roster` and `inventory` are the latest; both are replaced, never edited. `announcer` hears of a damaged roster.
    """

    def __init__(
        self,
        *,
        nvml: Nvml,
        partitions: Partitions,
        host: Host,
        roster_store: RosterStore,
        records: RecordStore,
        locks: FileLocks,
        announcer: Announces = UNHEARD,
    ) -> None:
        self._nvml = nvml
        self._partitions = partitions
        self._host = host
        self._roster_store = roster_store
        self._records = records
        self._locks = locks
        self._announcer = announcer
        self._gpu_wait_s = _GPU_WAIT_S
        self._guard = threading.Lock()  # of the three sets
        self._roster = roster_store.read_roster()
        self._raised: set[str] = set()
        self._reset: set[str] = set()
        self._held_open: set[str] = set()
        self._inventory = Inventory(driver_version="", cuda_driver_version=0, gpus=(), partitions=())
        self._seen_in = ""  # the epoch of `_inventory`; empty where it ended meanwhile

    @property
    def roster(self) -> Roster:
        """What is on disk, since another process may have looked; what was read last where that is damaged or gone.

        The next look puts it back; until then nothing must keep partitions from being given back.
        """
        with contextlib.suppress(StateError, TryAgain):
            read = self._roster_store.read_roster()
            self._roster = self._roster if read == EMPTY_ROSTER else read
        return self._roster

    @property
    def inventory(self) -> Inventory:
        """What the last look found."""
        return self._inventory

    def refresh(self) -> tuple[str, ...]:
        """Look, write what changed; returns the UUIDs whose generation rose since the last call.

        NvmlError where NVML as a whole fails, TryAgain where the roster's lock is not to be had.
        """
        uuids = {known.gpu.index: known.gpu.uuid for known in self.roster.gpus if known.present}
        began = self._get_epoch()
        before = self._inventory if began == self._seen_in else None
        seen = discover(self._nvml, self._host, self._partitions, before, uuids=uuids)
        boot_id, module_token = self._host.get_boot_id(), self._host.get_module_token()
        epoch = render_epoch(boot_id, module_token)
        with self._hold_roster():
            known = self._read_locked()
            records = self._records.list().records
            emptied = _list_emptied(known, seen, records, epoch)
            surviving = _list_surviving(known, seen, records)
            planned = plan_roster(
                known, seen, boot_id=boot_id, module_token=module_token, emptied=emptied, surviving=surviving
            )
            raised = _list_raised(known, planned)
            roster = planned
            for uuid in raised:
                roster = roster.replace_gpu(_hold_back(known, uuid))
            if roster != known:
                self._roster_store.write_roster(roster)
        self._inventory, self._roster = seen, roster
        self._seen_in = epoch if epoch == began else ""
        for uuid in raised:
            self._settle(_get(roster, uuid), _get(planned, uuid), emptied=uuid in emptied)
        with self._guard:
            self._held_open.update(gpu.uuid for gpu in seen.gpus if gpu.uuid not in emptied)
            risen, self._raised = tuple(sorted(self._raised)), set()
        return risen

    def take_resets(self) -> frozenset[str]:
        """UUIDs of the GPUs that were reset since the last call, which neither a boot nor a load of the module shows.

        One that went and came back; and one whose recorded partitions are all gone at the first look since NVML was
        opened. No GPU is reset while a process has it open, as this one has all GPUs from then on: whoever empties one
        later did so by hand.
        """
        with self._guard:
            resets, self._reset = frozenset(self._reset), set()
        return resets

    def note_opened(self) -> None:
        """NVML was closed and is open again: what happened to the GPUs meanwhile shows at the first look at each."""
        with self._guard:
            self._held_open.clear()

    def catch_up(self, gpu_uuid: str) -> None:
        """Note a boot or a module reload that the GPU's generation takes no account of yet.

        What is made next is of a new generation, and what is recorded of an older one is not destroyed. Whoever is
        about to work on a GPU calls this and holds the GPU's lock. It costs no call of NVML where nothing happened.
        TryAgain where the roster's lock is not to be had.
        """
        epoch = self._get_epoch()
        roster = self.roster
        known = roster.find(gpu_uuid)
        if known is not None and known.present and roster.epoch_of(known) != epoch:
            self._settle_locked(known, replace(known, generation=known.generation + 1, epoch=epoch), emptied=False)

    def note_if_emptied(self, known: KnownGpu, instances: Sequence[GpuInstance]) -> bool:
        """Whether the recorded partitions of a GPU are all gone, which no look has noticed yet; it is noted then.

        By their places alone, which costs no call; where they are gone, the UUIDs are compared. The caller holds the
        GPU's lock, and begins anew after True.
        """
        slots = {(one.profile_id, one.placement) for one in instances}
        recorded = list(_list_prepared(known, self._records.list().records))
        if not recorded or any((one.profile_id, one.placement) in slots for one in recorded):
            return False
        self._settle_locked(known, replace(known, generation=known.generation + 1), emptied=True)
        return True

    def _get_epoch(self) -> str:
        return render_epoch(self._host.get_boot_id(), self._host.get_module_token())

    def _hold_roster(self) -> contextlib.AbstractContextManager[object]:
        return hold(self._locks.roster_lock(), _LOCK_TIMEOUT_S, "the roster of GPUs")

    def _read_locked(self) -> Roster:
        """What is on disk. Where that is damaged or gone, its copy is put back, or what this process read last.

        Nothing else knows the names and generations of the GPUs as well. The caller holds the roster's lock.
        """
        try:
            roster, problem = self._roster_store.read_roster(), "is gone"
        except OtherRelease:
            raise
        except StateError as error:
            roster, problem = EMPTY_ROSTER, str(error)
        if roster != EMPTY_ROSTER or self._roster == EMPTY_ROSTER:
            return roster
        aside = self._roster_store.set_aside()
        newest = choose_newest(self._roster, self._roster_store.read_copy())
        restored = renew_generations(newest, self._records.list().records)
        self._roster_store.write_roster(restored)
        sentence = f"the roster of GPUs ({self._roster_store.path}) was put back: {problem}; kept for people: {aside}"
        log.error("%s", sentence)
        self._announcer.announce_set_aside(sentence)
        return restored

    def _settle(self, held_back: KnownGpu, planned: KnownGpu, *, emptied: bool) -> None:
        """Raise the generation of one GPU where a second look confirms the loss, with nobody at work on it."""
        uuid = held_back.gpu.uuid
        try:
            with hold(self._locks.gpu_lock(uuid), self._gpu_wait_s, f"GPU {uuid}"):
                self._settle_locked(held_back, planned, emptied=emptied)
        except TryAgain as error:
            log.warning("GPU %s seems to have lost its partitions, the next look tells: %s", uuid, error)

    def _settle_locked(self, before: KnownGpu, planned: KnownGpu, *, emptied: bool) -> None:
        """Write `planned`, with the generation of `before` where nothing was lost; nothing where another was faster."""
        uuid = before.gpu.uuid
        lost = self._is_lost(replace(before, gpu=planned.gpu), emptied=emptied)
        with self._hold_roster():
            roster = self._read_locked()
            if roster.find(uuid) != before:
                return
            settled = planned if lost else replace(planned, generation=before.generation)
            if settled != before:
                roster = roster.replace_gpu(settled)
                self._roster_store.write_roster(roster)
            self._roster = roster
        if lost:
            log.warning("what was made on GPU %s before is gone: boot, module reload, reset, or gone and back", uuid)
            with self._guard:
                self._raised.add(uuid)
                if not before.present or (emptied and uuid not in self._held_open):
                    self._reset.add(uuid)
                self._held_open.add(uuid)

    def _is_lost(self, known: KnownGpu, *, emptied: bool) -> bool:
        """A second look at a GPU whose lock is held.

        One that is silent is left as it is where it only looks emptied, or where a roster that was rebuilt tells of no
        boot and no load that it may have lived through.
        """
        uuid = known.gpu.uuid
        try:
            self._partitions.check_read(known.gpu)
            seen = self._partitions.list_live(uuid, known.gpu.profiles)
        except (NvmlError, TryAgain) as error:
            log.warning("GPU %s seems to have lost its partitions and does not answer: %s", uuid, error)
            return not emptied and known.epoch != EMPTY_ROSTER.epoch
        live = {one.mig_uuid for one in seen}
        records = self._records.list().records
        if not emptied:
            return live.isdisjoint(one.mig_uuid for one in _list_recorded(known, records))
        # What the first look missed may have been given back since, or made and given back: then nothing is left to
        # miss, or a record on its way out, whose partition went under this lock.
        prepared = [one.mig_uuid for one in _list_prepared(known, records)]
        return bool(prepared) and live.isdisjoint(prepared) and not _has_half_done(known, seen, records)


def _get(roster: Roster, uuid: str) -> KnownGpu:
    known = roster.find(uuid)
    assert known is not None, "only known GPUs rise"
    return known


def _hold_back(known: Roster, uuid: str) -> KnownGpu:
    """The entry as it was, and of the epoch that it was of: the roster's own is about to change."""
    before = _get(known, uuid)
    return replace(before, epoch=known.epoch_of(before))


def _list_raised(known: Roster, roster: Roster) -> tuple[str, ...]:
    """UUIDs in ascending order, in which their locks are taken."""
    raised = [
        new.gpu.uuid
        for new in roster.gpus
        if (old := known.find(new.gpu.uuid)) is not None and new.generation != old.generation
    ]
    return tuple(sorted(raised))


def _list_surviving(known: Roster, seen: Inventory, records: Sequence[ClaimRecord]) -> tuple[str, ...]:
    live = {one.mig_uuid for one in seen.partitions}
    return tuple(
        gpu.gpu.uuid
        for gpu in known.gpus
        if any(one.mig_uuid in live for one in _list_recorded(gpu, records))
        or _has_nothing_to_lose(known, gpu, records)
    )


def _has_nothing_to_lose(known: Roster, gpu: KnownGpu, records: Sequence[ClaimRecord]) -> bool:
    """Whether a GPU of a roster that was rebuilt, which knows of no boot and no load, is in no record by partitions.

    That its file was damaged is no reason to tell the claims of whole GPUs that their driver was loaded anew.
    """
    rebuilt = known.epoch_of(gpu) == EMPTY_ROSTER.epoch
    return rebuilt and not any(device.partitions for one in records for device in one.devices_on(gpu.gpu.uuid))


def _list_emptied(known: Roster, seen: Inventory, records: Sequence[ClaimRecord], epoch: str) -> tuple[str, ...]:
    """The GPUs that answer, have prepared partitions of this generation, and none of them lives.

    After a boot or a reload that is no surprise, and needs no second thought.
    """
    answering = {gpu.uuid for gpu in seen.gpus}
    live = {one.mig_uuid for one in seen.partitions}
    return tuple(
        gpu.gpu.uuid
        for gpu in known.gpus
        if gpu.present
        and known.epoch_of(gpu) == epoch
        and gpu.gpu.uuid in answering
        and (recorded := [one.mig_uuid for one in _list_prepared(gpu, records)])
        and live.isdisjoint(recorded)
        and not _has_half_done(gpu, seen.partitions, records)
    )


def _has_half_done(known: KnownGpu, seen: Sequence[LivePartition], records: Sequence[ClaimRecord]) -> bool:
    """Whether an instance of a claim that is half given back still stands: then it was no reset that took the others.

    Its compute instance, and with it the UUID, may be gone already.
    """
    half_done = [record for record in records if record.state is not ClaimState.PREPARED]
    return any(
        partition.matches(one) and one.gi_id == partition.gi_id and one.mig_uuid in {None, partition.mig_uuid}
        for partition in _list_recorded(known, half_done)
        for one in seen
        if one.gpu_uuid == known.gpu.uuid
    )


def _list_prepared(known: KnownGpu, records: Sequence[ClaimRecord]) -> Iterator[RecordedPartition]:
    """A half-done claim is no witness: its instance may stand without the compute instance whose UUID was recorded."""
    return _list_recorded(known, [record for record in records if record.state is ClaimState.PREPARED])


def _list_recorded(known: KnownGpu, records: Sequence[ClaimRecord]) -> Iterator[RecordedPartition]:
    for record in records:
        for device in record.devices_on(known.gpu.uuid):
            if device.generation == known.generation and not device.admin_access:
                yield from (partition for partition in device.partitions if partition.mig_uuid is not None)
