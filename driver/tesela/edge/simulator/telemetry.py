"""Named calls whose answers follow from load: utilization, power, temperature, clocks, energy.

A GPU is as busy as its compute processes make it: wholly with MIG off, by the compute slices of the instances that have
one with MIG on. Figures are the same at every call, and differ a little between GPUs by their UUIDs; only energy knows
time. Idle draw is taken to be an eighth of the board's power limit, full draw nine tenths of the limit in force.
"""

from __future__ import annotations

import uuid
from itertools import chain
from typing import Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.activity import advance_activity
from tesela.edge.simulator.boards import BOARDS, Board
from tesela.edge.simulator.gpu import SimulatedGpu
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import GpuRow, GpuRule, Row, number
from tesela.edge.simulator.targets import Asked, NamedAnswer

_SAMPLING_PERIOD_US: Final = 167_000
_IDLE_CELSIUS: Final = 30
_BUSY_CELSIUS: Final = 36
"""Above idle, with everything busy."""
_BUSY_PERCENT: Final = 96
_BUSY_MEMORY_PERCENT: Final = 41
_BUSY_PCIE_KB_S: Final = 1_500_000
_REASON_IDLE: Final = 0x1


def board_of(gpu: SimulatedGpu) -> Board:
    """The facts of the GPU's board."""
    return BOARDS[gpu.model.model]


def busy_share(gpu: SimulatedGpu) -> float:
    """How much of the GPU computes, 0 to 1."""
    working = [p for p in gpu.processes if p.kind != "open"]
    if gpu.mig != codes.MIG_ENABLED:
        return 1.0 if working else 0.0
    busy = {p.gi_id for p in working}
    slices = sum(i.profile.compute_slices for gi_id, i in gpu.instances.items() if gi_id in busy)
    return slices / gpu.model.compute_slices


def power_limit_mw(gpu: SimulatedGpu) -> int:
    """The limit in force: the one that was set since the driver was loaded, or the board's."""
    return board_of(gpu).power_limit_mw if gpu.power_limit_mw is None else gpu.power_limit_mw


def power_draw_mw(gpu: SimulatedGpu) -> int:
    """What the GPU draws now."""
    limit = power_limit_mw(gpu)
    idle = board_of(gpu).power_limit_mw // 8 + 700 * _spread(gpu)
    return idle + int((limit * 9 // 10 - idle) * busy_share(gpu))


def advance_meters(gpu: SimulatedGpu, now_s: float) -> None:
    """Moves the meters of energy and of activity to `now_s`, from where on the GPU's load is what it is now."""
    gpu.energy.advance(now_s, power_draw_mw(gpu))
    advance_activity(gpu, now_s, busy_share(gpu))


def _spread(gpu: SimulatedGpu) -> int:
    """0 to 4, by UUID: no two boards are quite alike."""
    return uuid.UUID(gpu.uuid.removeprefix("GPU-")).int % 5


def known(value: int | None) -> NamedAnswer:
    """The answer `value`; NOT_SUPPORTED where nobody knows it."""
    if value is None:
        raise Refused(codes.NOT_SUPPORTED)
    return number(value)


def _utilization(asked: Asked) -> NamedAnswer:
    """NOT_SUPPORTED on a MIG device and on a GPU in MIG mode."""
    if asked.is_mig_device or asked.gpu.mig == codes.MIG_ENABLED:
        raise Refused(codes.NOT_SUPPORTED)
    return NamedAnswer(_utilization_percent(asked.gpu))


def _utilization_percent(gpu: SimulatedGpu) -> tuple[int, int]:
    if not busy_share(gpu):
        return 0, 0
    return _BUSY_PERCENT - _spread(gpu), _BUSY_MEMORY_PERCENT - _spread(gpu)


def _process_utilization(asked: Asked) -> NamedAnswer:
    """Of each process that computes: pid, time in microseconds, and percent of SMs, memory, encoder and decoder.

    There is always a sample of just now; NOT_FOUND where none is later than the time asked for.
    """
    gpu, (since_us,) = asked.gpu, asked.request.numbers
    if gpu.mig == codes.MIG_ENABLED:
        raise Refused(codes.NOT_SUPPORTED)
    now_us = int(asked.machine.wall_clock() * 1e6)
    pids = sorted({p.pid for p in gpu.processes if p.kind != "open"})
    if not pids or since_us >= now_us:
        raise Refused(codes.NOT_FOUND)
    sm, memory = (percent // len(pids) for percent in _utilization_percent(gpu))
    return NamedAnswer(tuple(chain.from_iterable((pid, now_us, sm, memory, 0, 0) for pid in pids)))


def _engine_utilization(asked: Asked) -> NamedAnswer:
    """Media engines stay idle: a process of the simulator only computes."""
    if asked.gpu.mig == codes.MIG_ENABLED:
        raise Refused(codes.NOT_SUPPORTED)
    return NamedAnswer((0, _SAMPLING_PERIOD_US))


def _temperature(asked: Asked) -> NamedAnswer:
    if asked.request.numbers[0] != 0:
        raise Refused(codes.INVALID_ARGUMENT)
    return number(_IDLE_CELSIUS + _spread(asked.gpu) + int(_BUSY_CELSIUS * busy_share(asked.gpu)))


def _energy(asked: Asked) -> NamedAnswer:
    return number(asked.gpu.energy.advance(asked.machine.clock(), power_draw_mw(asked.gpu)))


def _clock(asked: Asked) -> NamedAnswer:
    return known(clock_mhz(asked.gpu, asked.request.numbers[0]))


def clock_mhz(gpu: SimulatedGpu, clock_type: int) -> int | None:
    """The clock now; INVALID_ARGUMENT: there is no such clock."""
    board, busy = board_of(gpu), bool(busy_share(gpu))
    graphics = board.graphics_max_mhz if busy else board.graphics_idle_mhz
    video = board.video_max_mhz if busy else board.video_idle_mhz
    return clock_of_type(clock_type, graphics=graphics, memory=board.memory_mhz, video=video)


def clock_of_type(clock_type: int, *, graphics: int | None, memory: int, video: int | None) -> int | None:
    """That of the figures which `clock_type` (nvmlClockType_t) means; the SMs run with the graphics clock."""
    match clock_type:
        case 0 | 1:
            return graphics
        case 2:
            return memory
        case 3:
            return video
        case _:
            raise Refused(codes.INVALID_ARGUMENT)


def _performance_state(asked: Asked) -> NamedAnswer:
    return number(0 if busy_share(asked.gpu) else board_of(asked.gpu).idle_pstate)


def _clocks_event_reasons(asked: Asked) -> NamedAnswer:
    return number(0 if busy_share(asked.gpu) else _REASON_IDLE)


def _pcie_throughput(asked: Asked) -> NamedAnswer:
    if asked.request.numbers[0] not in {0, 1}:
        raise Refused(codes.INVALID_ARGUMENT)
    return number(int(_BUSY_PCIE_KB_S * busy_share(asked.gpu)))


_OF_A_GPU: Final[dict[str, GpuRule]] = {
    "nvmlDeviceGetPowerUsage": lambda asked: number(power_draw_mw(asked.gpu)),
    "nvmlDeviceGetTotalEnergyConsumption": _energy,
    "nvmlDeviceGetPerformanceState": _performance_state,
    "nvmlDeviceGetCurrentClocksEventReasons": _clocks_event_reasons,
    "nvmlDeviceGetEncoderUtilization": _engine_utilization,
    "nvmlDeviceGetDecoderUtilization": _engine_utilization,
    "nvmlDeviceGetJpgUtilization": _engine_utilization,
    "nvmlDeviceGetOfaUtilization": _engine_utilization,
}
_BY_TYPE: Final[dict[str, GpuRule]] = {
    "nvmlDeviceGetTemperature": _temperature,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetPcieThroughput": _pcie_throughput,
    "nvmlDeviceGetProcessUtilization": _process_utilization,
}
"""With one argument: which sensor, clock or counter, or since when."""

ROWS: Final[tuple[Row, ...]] = (
    *(GpuRow(function=function, target="G", rule=rule) for function, rule in _OF_A_GPU.items()),
    *(GpuRow(function=function, target="G", numbers=1, rule=rule) for function, rule in _BY_TYPE.items()),
    GpuRow(function="nvmlDeviceGetUtilizationRates", target="D", rule=_utilization),
)
