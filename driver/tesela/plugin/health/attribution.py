"""Which partition an event of NVML is about: from the id of its GPU instance to a placement.

Ids are small and used again, placements are what health is kept by. The partition that lives under the id is asked for
first; where it went meanwhile, or its GPU does not answer, the record that holds the id tells. Known by neither, the
event is taken to be about the whole GPU: too much is fenced rather than too little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tesela.core.errors import NvmlError, StateError, TryAgain
from tesela.core.model import Placement
from tesela.core.release import is_stale
from tesela.core.roster import Roster
from tesela.edge.nvml.port import Nvml
from tesela.edge.store.records import RecordStore

log = logging.getLogger(__name__)


class Attribution:
    """Looks up placements; never raises."""

    def __init__(self, *, nvml: Nvml, records: RecordStore, roster: Callable[[], Roster]) -> None:
        self._nvml = nvml
        self._records = records
        self._roster = roster
        self._said: set[tuple[str, int]] = set()

    def find_placement(self, gpu_uuid: str, gi_id: int) -> Placement | None:
        """Where the instance `gi_id` is, or was until just now; None where nobody knows."""
        try:
            placement = self._nvml.get_gpu_instance_by_id(gpu_uuid, gi_id).placement
        except (NvmlError, TryAgain) as error:
            if (gpu_uuid, gi_id) not in self._said:  # once, and not ten times a second while a storm lasts
                log.info("GPU instance %d of GPU %s is looked up in the records: %s", gi_id, gpu_uuid, error)
            self._said.add((gpu_uuid, gi_id))
        else:
            self._said.discard((gpu_uuid, gi_id))
            return placement
        try:
            recorded = set(self._list_recorded(gpu_uuid, gi_id))
        except (StateError, TryAgain) as error:
            log.warning("GPU instance %d of GPU %s is not known: %s", gi_id, gpu_uuid, error)
            return None
        # Two records with one id: one of them is wrong, and nothing tells which.
        return recorded.pop() if len(recorded) == 1 else None

    def _list_recorded(self, gpu_uuid: str, gi_id: int) -> Iterator[Placement]:
        """Where records have it. What went with a boot or a reset had its id in another life."""
        roster = self._roster()
        known = roster.find(gpu_uuid)
        for record in self._records.list().records:
            for device in record.devices_on(gpu_uuid):
                if not is_stale(device, known, roster.boot_id):
                    yield from (one.placement for one in device.partitions if one.gi_id == gi_id)
