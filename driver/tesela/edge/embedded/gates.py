"""Which features a server has: by its version, or as a caller sets its gates. Data and two predicates, nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

# the minor release from which a gate is on by default, for the gates of `resource.k8s.io/v1` that change what is kept
ON_BY_DEFAULT_SINCE = {
    "DRAResourceClaimDeviceStatus": 33,
    "DRAAdminAccess": 34,
    "DRAPrioritizedList": 34,
    "DRAConsumableCapacity": 36,
    "DRADeviceBindingConditions": 36,
    "DRADeviceTaints": 36,
    "DRAPartitionableDevices": 36,
}
SPLITS_COUNTERS_SINCE = 35
SELECTS_POOL_NAME_SINCE = 37


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A server's minor release and its open gates."""

    minor: int
    gates: frozenset[str]

    def enabled(self, gate: str) -> bool:
        """Whether `gate` is open."""
        return gate in self.gates

    @property
    def splits_counters(self) -> bool:
        """Whether counter sets and devices live in slices of their own (from 1.35 on) or in one."""
        return self.minor >= SPLITS_COUNTERS_SINCE


def plan_features(server_version: str, gates: frozenset[str] | None) -> Features:
    """The features of `server_version` (as in `v1.37.2`); `gates` replaces its open gates where it is not None."""
    match = re.match(r"v1\.(\d+)\.", server_version)
    if not match:
        raise ValueError(f"server version {server_version!r}: want one like v1.37.2")
    minor = int(match[1])
    defaults = frozenset(gate for gate, since in ON_BY_DEFAULT_SINCE.items() if minor >= since)
    return Features(minor=minor, gates=defaults if gates is None else gates)
