"""What a device plugin offers on the node, from what the Node's status says again and again.

A Node that says 0 may only wait for its plugin, so 0 is not believed at once. Asking the API is `neighbours.py`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tesela.core.device_plugins import list_known, list_offered
from tesela.plugin.deadline import Deadline

LINGER_S: Final = 60.0
"""A kubelet that starts says 0 of every plugin that has not registered yet, and writes the Node ten seconds later;
a plugin that is updated is away until its next pod is up."""
BOOT_S: Final = 300.0
"""So long after a boot a plugin that the Node knows may not have had the time to register."""


def get_uptime_s() -> float:
    """Seconds since the node booted, those asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True, kw_only=True)
class Offer:
    """What counts as offered. A resource that is offered no more counts for `linger_s` longer."""

    linger_s: float = LINGER_S
    get_uptime_s: Callable[[], float] = get_uptime_s
    _resources: tuple[str, ...] | None = field(default=None, init=False)
    _withdrawn: Deadline | None = field(default=None, init=False)

    @property
    def resources(self) -> tuple[str, ...] | None:
        """What counts now; None while nobody has looked."""
        return self._resources

    def note(self, allocatable: Mapping[str, str]) -> tuple[str, ...]:
        """What counts by the Node's status.allocatable as it is now.

        At a first look soon after a boot a plugin that the Node has known counts as one that was withdrawn just now.
        """
        if self._resources is None and self.get_uptime_s() < BOOT_S:
            self._resources = list_known(allocatable)
        offered = list_offered(allocatable)
        if offered or not self._resources:
            self._withdrawn = None
            self._resources = offered
            return offered
        self._withdrawn = self._withdrawn or Deadline.after(self.linger_s)
        if not self._withdrawn.left_s:
            self._resources = ()
        return self._resources
