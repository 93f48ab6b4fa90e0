"""What a scrape shows of a node, as one value: facts that are in memory or on our own disk, read at that moment.

Whoever builds one (`plugin/snapshot.py`) asks neither NVML nor the API server. None means unknown, and what is unknown
has no series: a 0 would be taken for a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tesela.core.driver_files import DriverFiles
from tesela.core.health.model import ALL_HEALTHY, NodeHealth
from tesela.core.record import ClaimRecord
from tesela.core.room import Room
from tesela.core.roster import EMPTY_ROSTER, Roster
from tesela.core.slices.pool import Pool
from tesela.core.trouble import Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a device that a claim holds uses. `uuid` is the MIG device's, or the GPU's where it is held whole.

    `gi_id` is a partition's GPU instance.
    """

    gpu_uuid: str
    uuid: str
    profile: str
    namespace: str
    claim: str
    gi_id: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_activity_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One moment of a node. `pool` is as last rendered for the API; `orphans` by kind, as the last sweep found them."""

    version: str
    roster: Roster = EMPTY_ROSTER
    records: tuple[ClaimRecord, ...] = ()
    pool: Pool | None = None
    health: NodeHealth = ALL_HEALTHY
    rooms: tuple[Room, ...] = ()
    usage: tuple[Usage, ...] = ()
    wedged_gpus: frozenset[str] = frozenset()
    wedged_node: bool = False
    registered: bool = False
    troubles: frozenset[Trouble] = frozenset()
    health_streams: int | None = None
    nvml_released: bool | None = None
    event_set_open: bool | None = None
    orphans: Mapping[str, int] = field(default_factory=dict)
    last_sweep_s: float | None = None
    driver_files: DriverFiles | None = None
