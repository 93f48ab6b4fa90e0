"""The budgets of the design, by the name of the figure that is held to them: on a node of 8 GPUs, MIG on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit, and on which side of it a figure has to stay."""

    limit: float
    at_least: bool = False


GPUS: Final = 8
BUDGETS: Final[Mapping[str, Budget]] = {
    "start to published slices": Budget(1.2),
    "prepare whole GPU, p50": Budget(6.0),
    "prepare whole GPU, p99": Budget(20.0),
    "prepare whole GPU, 8 at once": Budget(130.0, at_least=True),
    "prepare whole GPU, 8 at once, p99": Budget(120.0),
    "prepare partition, p50": Budget(9.0),
    "prepare partition, p99": Budget(25.0),
    "resident after 200 claims": Budget(96.0),
    "one NVML call through libnvidia-ml.so.1, p50": Budget(60.0),
    "idle, API writes": Budget(1.0),
    "idle, processor time": Budget(0.5),
}
