"""How busy the SMs were, as GPM samples tell it (Hopper and later): meters, samples, metrics.

A sample is a meter's reading at a time; the metric is what lies between two of one meter. As in `telemetry`, a process
that computes keeps everything that it may use busy; that a whole GPU in MIG mode has samples too is inferred, NVML's
header only says how an instance is asked. Meters are moved by `machine`, under the GPU's lock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import GpmSample
from tesela.edge.simulator.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tesela.edge.simulator.gpu import SimulatedGpu

HOPPER: Final = 9
"""nvmlDeviceArchitecture_t: GPM begins there."""
_MICRO: Final = 1e6
_SHARES: Final = {codes.GPM_GRAPHICS_UTILIZATION: 1.0, codes.GPM_SM_UTILIZATION: 0.96, codes.GPM_DRAM_BANDWIDTH: 0.4}
"""What a wholly busy GPU shows of each metric, as a share of all."""
_numbers = count(1)


@dataclass(slots=True, kw_only=True)
class ActivityMeter:
    """Adds up how long its SMs were busy. Callers hold the GPU's lock and give the time of a monotonic clock."""

    number: int = field(default_factory=lambda: next(_numbers))
    """No two meters have the same: samples of an instance and of its successor must not be compared."""
    busy_s: float = 0.0
    share: float = 0.0
    at_s: float | None = None

    def advance(self, now_s: float, share: float) -> None:
        """The time until `now_s` was spent as before; from then on `share` of it, 0 to 1, is busy."""
        if self.at_s is not None:
            self.busy_s += self.share * max(0.0, now_s - self.at_s)
        self.at_s, self.share = now_s, share


class ActivitySample(NamedTuple):
    """A meter's reading, in whole microseconds, as it travels."""

    meter: int
    time_us: int
    busy_us: int


@dataclass(frozen=True, slots=True)
class SimulatedSample:
    """The port's sample over numbers that need not be freed."""

    gpu_uuid: str
    numbers: ActivitySample


def numbers_of(sample: GpmSample) -> ActivitySample:
    """What a sample of this backend holds. NvmlError: INVALID_ARGUMENT for one of another backend."""
    if not isinstance(sample, SimulatedSample):
        function = FUNCTIONS["get_gpm_metrics"]
        raise NvmlError(codes.INVALID_ARGUMENT, function, codes.TEXTS[codes.INVALID_ARGUMENT])
    return sample.numbers


def unless_unsupported(read: Callable[[], float]) -> float | None:
    """What `read` returns, None where it ends with NOT_SUPPORTED: NVML tells that per metric."""
    try:
        return read()
    except NvmlError as error:
        if error.code != codes.NOT_SUPPORTED:
            raise
        return None


def value_of_bits(bits: int) -> float:
    """The double whose bits an answer carries."""
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def advance_activity(gpu: SimulatedGpu, now_s: float, share: float) -> None:
    """Moves the meters of a GPU, `share` of which is busy, and of its GPU instances."""
    gpu.activity.advance(now_s, share)
    busy = {process.gi_id for process in gpu.processes if process.kind != "open"}
    for gi_id, instance in gpu.instances.items():
        instance.activity.advance(now_s, 1.0 if gi_id in busy else 0.0)


def is_sampled(gpu: SimulatedGpu) -> bool:
    """Whether the GPU has GPM (nvmlGpmQueryDeviceSupport)."""
    return gpu.model.architecture >= HOPPER


def read_sample(gpu: SimulatedGpu, gi_id: int | None, now_s: float) -> ActivitySample:
    """A sample of the GPU, or of one of its instances. Refused: NOT_SUPPORTED before Hopper, NOT_FOUND."""
    if not is_sampled(gpu):
        raise Refused(codes.NOT_SUPPORTED)
    if gi_id is not None and gi_id not in gpu.instances:
        raise Refused(codes.NOT_FOUND)
    meter = gpu.activity if gi_id is None else gpu.instances[gi_id].activity
    meter.advance(now_s, meter.share)
    return ActivitySample(meter.number, int(now_s * _MICRO), int(meter.busy_s * _MICRO))


def plan_metric(metric_id: int, before: ActivitySample, after: ActivitySample) -> float:
    """A metric in percent. Refused: INVALID_ARGUMENT for samples of two things or in the wrong order, NOT_SUPPORTED."""
    elapsed_us = after.time_us - before.time_us
    if before.meter != after.meter or elapsed_us <= 0:
        raise Refused(codes.INVALID_ARGUMENT)
    if metric_id not in _SHARES:
        raise Refused(codes.NOT_SUPPORTED)
    return round(100 * _SHARES[metric_id] * (after.busy_us - before.busy_us) / elapsed_us, 3)
