"""What a pool is rendered from: durable facts, what claims hold, fences, and what this API server can store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from tesela.core.geometry import overlap
from tesela.core.health.model import ALL_HEALTHY, NodeHealth, Reach
from tesela.core.model import LivePartition, Placement
from tesela.core.record import ClaimRecord
from tesela.core.roster import Roster
from tesela.core.shape import DEFAULT_POLICY, Policy

Json: TypeAlias = dict[str, Any]

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
GONE_KEY = "gpu.nvidia.com/gone"
FOREIGN_KEY = "gpu.nvidia.com/foreign"
WITHDRAWN_KEY = "gpu.nvidia.com/withdrawn"

MAX_TAINTS = 16
"""Taints of one device (resource.k8s.io/v1, DeviceTaintsMaxLength): one more, and the API refuses the whole slice."""
MAX_TAINTS_BEFORE_1_35 = 4

_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_SPLIT_SINCE = (1, 35)
_V1_SINCE = (1, 34)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Taint:
    """A device taint without its time, which is the API's."""

    key: str
    value: str
    effect: str = NO_SCHEDULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A taint for every device of a GPU that touches `placement`; None is the whole grid, so every device.

    `key` is a qualified name, `value` a label value (63 characters at most). `shape` narrows it to the whole GPU, or to
    its partitions.
    """

    gpu_uuid: str
    placement: Placement | None
    key: str
    value: str
    effect: str = NO_SCHEDULE
    shape: Reach = Reach.ALL

    @property
    def taint(self) -> Taint:
        """What the devices get."""
        return Taint(key=self.key, value=self.value, effect=self.effect)

    def covers(self, gpu_uuid: str, placement: Placement | None) -> bool:
        """Whether a device at `placement` of that GPU (None: the whole GPU) is fenced."""
        if gpu_uuid != self.gpu_uuid or not self.shape.covers(placement):
            return False
        return self.placement is None or placement is None or overlap(self.placement, placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """Everything a pool is a function of. `pool` is the pool's name, which is the node's.

    `live` is one look at NVML. Whoever reads it reads the records before and after that look and passes both (the later
    one where a claim is in both): a partition of ours is then never taken for a foreign one while it comes or goes.
    """

    pool: str
    roster: Roster
    policy: Policy = DEFAULT_POLICY
    live: tuple[LivePartition, ...] = ()
    records: tuple[ClaimRecord, ...] = ()
    fences: tuple[Fence, ...] = ()
    health: NodeHealth = ALL_HEALTHY


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAbilities:
    """What the API server stores: without a gate it drops fields silently.

    `counters`: DRAPartitionableDevices. `taints`: DRADeviceTaints. `split`: counter sets stand in slices of their own.
    """

    counters: bool = True
    taints: bool = True
    split: bool = True


def is_split_version(git_version: str) -> bool:
    """Whether an API server of this version (`v1.37.2`) takes counter sets only in slices of their own (since 1.35)."""
    return _is_at_least(git_version, _SPLIT_SINCE)


def is_v1_version(git_version: str) -> bool:
    """Whether an API server of this version knows resource.k8s.io/v1 (since 1.34); one may still not serve it."""
    return _is_at_least(git_version, _V1_SINCE)


def _is_at_least(git_version: str, since: tuple[int, int]) -> bool:
    match = _VERSION.match(git_version)
    return match is None or (int(match[1]), int(match[2])) >= since


def render_label_value(text: str) -> str:
    """`text` as a label value: at most 63 letters, digits, `-`, `_` and `.`, ending in letters or digits."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).strip("-_.")[:63].rstrip("-_.")
