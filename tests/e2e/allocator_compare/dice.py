"""Random choices with a focus: each world makes a few features likely and the rest rarer.

Features drawn independently seldom meet in the way that tells two allocators apart (admin access and the very device
that is in use, say); a focus makes them meet in some worlds of every hundred.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Focus:
    """Features with their probability in worlds of this focus, and the kinds of pools there (any if empty)."""

    chances: dict[str, float] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()


FOCUSES = (
    Focus(),
    Focus(),
    Focus({"admin access": 0.7, "devices in use": 1.0, "first in use": 1.0, "taints": 0.1}, kinds=("plain",)),
    Focus({"taints": 1.0, "tolerations": 0.6}, kinds=("plain", "gpus")),
    Focus({"constraint": 1.0, "count": 0.7, "selected": 0.2, "bare name": 0.8}, kinds=("plain",)),
    Focus({"constraint": 1.0, "constraint on some requests": 1.0, "several requests": 1.0}, kinds=("plain", "gpus")),
    Focus({"all devices": 0.7, "constraint": 0.8, "selected": 0.5}, kinds=("plain",)),
    Focus({"shares with counters": 0.9, "several requests": 0.8, "selected": 0.1}, kinds=("shared",)),
    Focus({"request policy": 1.0, "capacity request": 0.95, "selected": 0.1}, kinds=("shared",)),
    Focus({"binding conditions": 0.6, "several pools": 1.0, "driver named": 0.1}, kinds=("plain",)),
    Focus({"prioritized list": 0.8, "result limit": 0.6}),
    Focus({"too many": 0.3}),
    Focus({"narrow class": 1.0, "several pools": 1.0, "driver named": 0.0}),
    Focus({"per-device nodes": 1.0, "selected": 0.4}, kinds=("plain",)),
    Focus({"old generation": 0.8}),
    Focus({"short counters": 0.5, "devices in use": 0.8, "several requests": 0.6}, kinds=("gpus",)),
    Focus({"short counters": 0.5, "count": 0.5}, kinds=("gpus",)),
)
_ELSEWHERE = 0.85
"""How much rarer a feature is in worlds with another focus."""


class Dice(Random):
    """A random generator that knows its world's focus."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.focus = self.choice(FOCUSES)

    def hits(self, feature: str, chance: float) -> bool:
        """Whether `feature` happens: with `chance` where the focus says nothing."""
        usual = chance * _ELSEWHERE if self.focus.chances else chance
        return self.random() < self.focus.chances.get(feature, usual)

    def pool_kind(self) -> str:
        """gpus, plain or shared."""
        return self.choice(self.focus.kinds or ("gpus", "gpus", "plain", "shared"))
