"""Keep the roster true: look at the machine, compare with what is on disk, write what changed.

Only this file writes the roster. Two driver processes may look at once, so reading and writing happen under the
roster's lock; a GPU that looks emptied is looked at again under its own lock before its generation is raised, because
a prepare or unprepare may be halfway through.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

from tesela.core.errors import NvmlError, TryAgain
from tesela.core.model import Inventory, LivePartition
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
        self._inventory = Inventory(driver_version="", cuda_driver_version=0, gpus=(), partitions=())

    @property
    def roster(self) -> Roster:
        """What is on disk as of the last look."""
        return self._roster

    @property
    def inventory(self) -> Inventory:
        """What the last look found."""
        return self._inventory

    def refresh(self) -> tuple[str, ...]:
        """Look, write what changed; returns the UUIDs whose generation rose. NvmlError where NVML as a whole fails."""
        with self._guard:
            seen = discover(self._nvml, self._host, self._partitions, self._inventory)
            boot_id, module_token = self._host.get_boot_id(), self._host.get_module_token()
            with hold(self._locks.roster_lock(), _LOCK_TIMEOUT_S, "the roster of GPUs"):
                known = self._roster_store.read_roster()
                roster = plan_roster(
                    known,
                    seen,
                    boot_id=boot_id,
                    module_token=module_token,
                    emptied=self._list_emptied(known, seen, boot_id),
                    surviving=self._list_surviving(known, seen),
                )
                if roster != known:
                    self._roster_store.write_roster(roster)
            self._inventory, self._roster = seen, roster
        raised = tuple(
            new.gpu.uuid
            for new in roster.gpus
            if (old := known.find(new.gpu.uuid)) is not None and new.generation != old.generation
        )
        for uuid in raised:
            log.warning("GPU %s lost all its partitions: boot, module reload, reset, or gone and back", uuid)
        return raised

    def _list_surviving(self, known: Roster, seen: Inventory) -> tuple[str, ...]:
        records = self._records.list().records
        live = {one.mig_uuid for one in seen.partitions}
        return tuple(
            gpu.gpu.uuid
            for gpu in known.gpus
            if any(partition.mig_uuid in live for partition in _list_recorded(gpu, records))
        )

    def _list_emptied(self, known: Roster, seen: Inventory, boot_id: str) -> tuple[str, ...]:
        if known.boot_id != boot_id:
            return ()  # the boot raises every generation by itself
        records = self._records.list().records
        answering = {gpu.uuid for gpu in seen.gpus}
        suspects = [
            gpu
            for gpu in known.gpus
            if gpu.present and gpu.gpu.uuid in answering and _looks_emptied(gpu, records, seen.partitions)
        ]
        return tuple(gpu.gpu.uuid for gpu in suspects if self._is_emptied(gpu))

    def _is_emptied(self, known: KnownGpu) -> bool:
        """A second look, with nobody at work on the GPU. Where that is not to be had, the next look decides."""
        try:
            with hold(self._locks.gpu_lock(known.gpu.uuid), _LOCK_TIMEOUT_S, f"GPU {known.gpu.uuid}"):
                live = self._partitions.list_live(known.gpu.uuid, known.gpu.profiles)
                return _looks_emptied(known, self._records.list().records, live)
        except (NvmlError, TryAgain) as error:
            log.warning("GPU %s seems to have lost its partitions, not confirmed: %s", known.gpu.uuid, error)
            return False


def _looks_emptied(known: KnownGpu, records: Sequence[ClaimRecord], live: Sequence[LivePartition]) -> bool:
    """Whether the GPU has prepared partitions of this generation and none of them lives.

    A half-done claim is no witness: its instance may stand without the compute instance whose UUID was recorded.
    """
    prepared = [record for record in records if record.state is ClaimState.PREPARED]
    uuids = {one.mig_uuid for one in live if one.gpu_uuid == known.gpu.uuid}
    recorded = [partition.mig_uuid for partition in _list_recorded(known, prepared)]
    return bool(recorded) and not any(uuid in uuids for uuid in recorded)


def _list_recorded(known: KnownGpu, records: Sequence[ClaimRecord]) -> Iterator[RecordedPartition]:
    for record in records:
        for device in record.devices_on(known.gpu.uuid):
            if device.generation == known.generation and not device.admin_access:
                yield from (partition for partition in device.partitions if partition.mig_uuid is not None)
