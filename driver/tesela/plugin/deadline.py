"""How long a call may still take: one value handed down, so that no wait is unbounded (invariant 8)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tesela.core.errors import TryAgain


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock."""

    at_s: float

    @classmethod
    def after(cls, timeout_s: float) -> Deadline:
        """The deadline `timeout_s` from now."""
        return cls(time.monotonic() + timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - time.monotonic())

    def halve(self) -> Deadline:
        """Half of the time left: what is done until then can still be undone until the end, which takes as long."""
        return Deadline.after(self.left_s / 2)

    def check(self, doing: str) -> None:
        """TryAgain naming what was being done, once the time is over."""
        if not self.left_s:
            raise TryAgain(f"no time left for {doing}; the kubelet tries again by itself")
