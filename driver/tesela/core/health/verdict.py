"""What users are told of one device: it works, it does not, or nobody can tell. One rule for pods and for claims.

Kubernetes knows three answers (KEP-4680), we know more states. A *degraded* device works, so it is healthy, and the
message says what ails it: whoever restarts pods on Unhealthy must not do so for a GPU that merely is not to be given to
others. *Unhealthy* and *gone* are unhealthy. Where all that speaks against a device is that NVML does not answer about
it, nobody can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tesela.core.health.model import HealthState, NodeHealth
from tesela.core.health.rules import describe
from tesela.core.model import Placement

_UNKNOWN_KEYS: Final = frozenset({"wedged", "released"})
"""Findings of which nobody can tell whether the device works: NVML does not answer, or was let go of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`healthy` is None where nobody can tell. `reason` is one CamelCase word, `message` has at most 1024 bytes."""

    healthy: bool | None
    reason: str
    message: str


def plan_verdict(health: NodeHealth, gpu_uuid: str, placement: Placement | None) -> Verdict:
    """The verdict on the device at `placement` of that GPU; None is the whole GPU."""
    found = health.find(gpu_uuid, placement)
    severe = [one for one in found if one.state not in {HealthState.HEALTHY, HealthState.DEGRADED}]
    telling = severe or [one for one in found if one.state is HealthState.DEGRADED]
    if not telling:
        return Verdict(healthy=True, reason="Healthy", message="")
    message = describe(health, gpu_uuid, placement)
    if all(one.key in _UNKNOWN_KEYS for one in telling):
        return Verdict(healthy=None, reason=telling[0].key.capitalize(), message=message)
    return Verdict(healthy=not severe, reason=telling[0].state.value.capitalize(), message=message)
