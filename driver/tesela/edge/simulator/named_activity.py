"""Named calls about how busy SMs were (GPM); the rules are those of `activity`."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tesela.edge.simulator.activity import ActivitySample, is_sampled, plan_metric, read_sample
from tesela.edge.simulator.rows import GpuRow, NodeRow, Row, number
from tesela.edge.simulator.targets import Asked, NamedAnswer, NamedRequest

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine


def _support(asked: Asked) -> NamedAnswer:
    return number(int(is_sampled(asked.gpu)))


def _sample(asked: Asked) -> NamedAnswer:
    gi_id = None if asked.gpu_instance is None else asked.gpu_instance.gi_id
    return NamedAnswer(tuple(read_sample(asked.gpu, gi_id, asked.machine.clock())))


def _mig_sample(asked: Asked) -> NamedAnswer:
    return NamedAnswer(tuple(read_sample(asked.gpu, asked.request.numbers[0], asked.machine.clock())))


def _metric(_machine: Machine, request: NamedRequest) -> NamedAnswer:
    """The bits of a double, which no integer holds otherwise."""
    metric_id, *rest = request.numbers
    value = plan_metric(metric_id, ActivitySample(*rest[:3]), ActivitySample(*rest[3:]))
    return number(struct.unpack("<Q", struct.pack("<d", value))[0])


ROWS: Final[tuple[Row, ...]] = (
    GpuRow(function="nvmlGpmQueryDeviceSupport", target="D", rule=_support),
    GpuRow(function="nvmlGpmSampleGet", target="D", rule=_sample),
    GpuRow(function="nvmlGpmMigSampleGet", target="G", numbers=1, rule=_mig_sample),
    NodeRow(function="nvmlGpmMetricsGet", numbers=7, rule=_metric),
)
