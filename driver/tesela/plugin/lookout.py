"""Keep the roster true: look at the machine, compare with what is on disk, write what changed.

Only this file writes the roster. Two driver processes may look at once, so reading and writing happen under the
roster's lock, and what counts is the file. A GPU whose generation is to rise is looked at again under its own lock, and
the lock is kept until the new generation is on disk, because a prepare or unprepare may be halfway through.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from functools import partial

from tesela.core.errors import NvmlError, StateError, TryAgain
from tesela.core.model import GpuInstance, Inventory
from tesela.core.record import ClaimRecord, ClaimState, RecordedPartition
from tesela.core.roster import KnownGpu, Roster, plan_roster
from tesela.edge.host.host import Host
from tesela.edge.nvml.port import Nvml
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.inventory import discover
from tesela.plugin.partition import Partitions

log = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 10.0


class Lookout:
    """The one that looks. `roster` and `inventory` are the latest; both are replaced, never edited."""

    def __init__(
        self,
        *,
        nvml: Nvml,
        partitions: Partitions,
        host: Host,
        roster_store: RosterStore,
        records: RecordStore,
        locks: FileLocks,
    ) -> None:
        self._nvml = nvml
        self._partitions = partitions
        self._host = host
        self._roster_store = roster_store
        self._records = records
        self._locks = locks
        self._guard = threading.Lock()
        self._roster = roster_store.read_roster()
        self._raised: set[str] = set()
        self._inventory = Inventory(driver_version="", cuda_driver_version=0, gpus=(), partitions=())

    @property
    def roster(self) -> Roster:
        """What is on disk, since another driver process may have looked. Where it is damaged, what was read last.

        A damaged roster is reported by the looks, and must not keep partitions from being given back.
        """
        with contextlib.suppress(StateError, TryAgain):
            self._roster = self._roster_store.read_roster()
        return self._roster

    @property
    def inventory(self) -> Inventory:
        """What the last look found."""
        return self._inventory

    def refresh(self) -> tuple[str, ...]:
        """Look, write what changed; returns the UUIDs whose generation rose since the last call.

        NvmlError where NVML as a whole fails, TryAgain where a lock is not to be had.
        """
        with self._guard:
            self._look()
            raised, self._raised = tuple(sorted(self._raised)), set()
        return raised

    def catch_up(self) -> None:
        """Look now if the kernel module was loaded anew since the last look: what is made next is of a new generation.

        Whoever is about to create or destroy calls this, holding no GPU's lock. Errors as `refresh`.
        """
        if self._host.get_module_token() != self.roster.module_token:
            self.look_again()

    def look_again(self) -> None:
        """Look now; the next `refresh` returns what it found. Errors as `refresh`."""
        with self._guard:
            self._look()

    def is_emptied(self, known: KnownGpu, instances: Sequence[GpuInstance]) -> bool:
        """Whether the recorded partitions of a locked GPU are all gone, which no look has noticed yet.

        By their places alone, which costs no call; a look compares the UUIDs.
        """
        slots = {(one.profile_id, one.placement) for one in instances}
        recorded = list(_list_prepared(known, self._records.list().records))
        return bool(recorded) and not any((one.profile_id, one.placement) in slots for one in recorded)

    def _look(self) -> None:
        seen = discover(self._nvml, self._host, self._partitions, self._inventory)
        boot_id, module_token = self._host.get_boot_id(), self._host.get_module_token()
        with hold(self._locks.roster_lock(), _LOCK_TIMEOUT_S, "the roster of GPUs"), contextlib.ExitStack() as locks:
            known = self._roster_store.read_roster()
            records = self._records.list().records
            emptied = _list_emptied(known, seen, records) if known.boot_id == boot_id else ()
            surviving = _list_surviving(known, seen, records)
            plan = partial(plan_roster, known, seen, boot_id=boot_id, module_token=module_token, emptied=emptied)
            roster = plan(surviving=surviving)
            if raised := _list_raised(known, roster):
                # Nobody may be at work on them until the new generation is on disk: what is made meanwhile would count
                # as lost.
                spared = [uuid for uuid in raised if not self._is_lost(known, uuid, emptied, locks)]
                roster = plan(surviving=(*surviving, *spared))
                raised = _list_raised(known, roster)
            if roster != known:
                self._roster_store.write_roster(roster)
        self._inventory, self._roster = seen, roster
        self._raised.update(raised)
        for uuid in raised:
            log.warning("GPU %s lost all its partitions: boot, module reload, reset, or gone and back", uuid)

    def _is_lost(self, known: Roster, uuid: str, emptied: Sequence[str], locks: contextlib.ExitStack) -> bool:
        """A second look at one GPU under its lock, which stays with `locks`.

        A GPU that only looks emptied is left to the next look where it is busy or silent.
        """
        gpu = known.find(uuid)
        assert gpu is not None, "only known GPUs rise"
        try:
            locks.enter_context(hold(self._locks.gpu_lock(uuid), _LOCK_TIMEOUT_S, f"GPU {uuid}"))
        except TryAgain:
            if uuid in emptied:
                return False
            raise
        try:
            live = {one.mig_uuid for one in self._partitions.list_live(uuid, gpu.gpu.profiles)}
        except (NvmlError, TryAgain) as error:
            log.warning("GPU %s seems to have lost its partitions and does not answer: %s", uuid, error)
            return uuid not in emptied
        records = self._records.list().records
        if uuid not in emptied:
            return live.isdisjoint(one.mig_uuid for one in _list_recorded(gpu, records))
        # What the first look missed may have been given back since, or made and given back: then nothing is left to
        # miss, or a record on its way out, whose partition went under this lock.
        prepared = [one.mig_uuid for one in _list_prepared(gpu, records)]
        return bool(prepared) and live.isdisjoint(prepared)


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
        gpu.gpu.uuid for gpu in known.gpus if any(one.mig_uuid in live for one in _list_recorded(gpu, records))
    )


def _list_emptied(known: Roster, seen: Inventory, records: Sequence[ClaimRecord]) -> tuple[str, ...]:
    """The GPUs that answer, have prepared partitions of this generation, and none of them lives."""
    answering = {gpu.uuid for gpu in seen.gpus}
    live = {one.mig_uuid for one in seen.partitions}
    return tuple(
        gpu.gpu.uuid
        for gpu in known.gpus
        if gpu.present
        and gpu.gpu.uuid in answering
        and (recorded := [one.mig_uuid for one in _list_prepared(gpu, records)])
        and live.isdisjoint(recorded)
    )


def _list_prepared(known: KnownGpu, records: Sequence[ClaimRecord]) -> Iterator[RecordedPartition]:
    """A half-done claim is no witness: its instance may stand without the compute instance whose UUID was recorded."""
    return _list_recorded(known, [record for record in records if record.state is ClaimState.PREPARED])


def _list_recorded(known: KnownGpu, records: Sequence[ClaimRecord]) -> Iterator[RecordedPartition]:
    for record in records:
        for device in record.devices_on(known.gpu.uuid):
            if device.generation == known.generation and not device.admin_access:
                yield from (partition for partition in device.partitions if partition.mig_uuid is not None)
