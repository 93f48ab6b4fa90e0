"""The energy meter of one GPU: it adds up what the GPU drew since the driver was loaded. It has no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class EnergyMeter:
    """Callers hold the GPU's lock and give the time of a monotonic clock."""

    used_mj: float = 0.0
    power_mw: int = 0
    at_s: float | None = None

    def advance(self, now_s: float, power_mw: int) -> int:
        """Millijoules used until `now_s`; from then on the GPU draws `power_mw`."""
        if self.at_s is not None:
            self.used_mj += self.power_mw * max(0.0, now_s - self.at_s)
        self.at_s, self.power_mw = now_s, power_mw
        return int(self.used_mj)
