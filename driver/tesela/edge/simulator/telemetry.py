"""Named calls whose answers follow from load: utilization, power, temperature, clocks, energy.

A GPU is as busy as its compute processes make it: wholly with MIG off, by the compute slices of the instances that have
one with MIG on. Figures are the same at every call, and differ a little between GPUs by their UUIDs; only energy knows
time. Idle draw is taken to be an eighth of the power limit, and full draw nine tenths of it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from itertools import chain
from typing import Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.boards import BOARDS, PCIE_WIDTH, Board
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
_ALL_REASONS: Final = 0x1FF
_THRESHOLD_COUNT: Final = 8
_BAR1_USED_MIB: Final = 1


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


def power_draw_mw(gpu: SimulatedGpu) -> int:
    """What the GPU draws now."""
    limit = board_of(gpu).power_limit_mw
    idle = limit // 8 + 700 * _spread(gpu)
    return idle + int((limit * 9 // 10 - idle) * busy_share(gpu))


def _spread(gpu: SimulatedGpu) -> int:
    """0 to 4, by UUID: no two boards are quite alike."""
    return uuid.UUID(gpu.uuid.removeprefix("GPU-")).int % 5


def _known(value: int | None) -> NamedAnswer:
    if value is None:
        raise Refused(codes.NOT_SUPPORTED)
    return number(value)


def _fact(read: Callable[[Board], int | None]) -> GpuRule:
    return lambda asked: _known(read(board_of(asked.gpu)))


def _zero(_asked: Asked) -> NamedAnswer:
    return number(0)


def _refuse(_asked: Asked) -> NamedAnswer:
    raise Refused(codes.NOT_SUPPORTED)


def _utilization(asked: Asked) -> NamedAnswer:
    """NOT_SUPPORTED on a MIG device and on a GPU in MIG mode."""
    if asked.is_mig_device or asked.gpu.mig == codes.MIG_ENABLED:
        raise Refused(codes.NOT_SUPPORTED)
    if not busy_share(asked.gpu):
        return NamedAnswer((0, 0))
    return NamedAnswer((_BUSY_PERCENT - _spread(asked.gpu), _BUSY_MEMORY_PERCENT - _spread(asked.gpu)))


def _engine_utilization(asked: Asked) -> NamedAnswer:
    """Media engines stay idle: a process of the simulator only computes."""
    if asked.gpu.mig == codes.MIG_ENABLED:
        raise Refused(codes.NOT_SUPPORTED)
    return NamedAnswer((0, _SAMPLING_PERIOD_US))


def _process_utilization(asked: Asked) -> NamedAnswer:
    """Per process pid, time in microseconds since 1970, and percent of SMs, memory, encoder and decoder.

    NOT_FOUND without a sample since then, NOT_SUPPORTED in MIG mode and on a MIG device.
    """
    sm_percent, memory_percent = _utilization(asked).numbers
    now_us = time.time_ns() // 1000
    working = [p for p in asked.gpu.processes if p.kind != "open"]
    if not working or asked.request.numbers[0] >= now_us:
        raise Refused(codes.NOT_FOUND)
    shares = (sm_percent // len(working), memory_percent // len(working), 0, 0)
    return NamedAnswer(tuple(chain.from_iterable((p.pid, now_us, *shares) for p in working)))


def _temperature(asked: Asked) -> NamedAnswer:
    if asked.request.numbers[0] != 0:
        raise Refused(codes.INVALID_ARGUMENT)
    return number(_IDLE_CELSIUS + _spread(asked.gpu) + int(_BUSY_CELSIUS * busy_share(asked.gpu)))


def _temperature_threshold(asked: Asked) -> NamedAnswer:
    (kind,) = asked.request.numbers
    if not 0 <= kind < _THRESHOLD_COUNT:
        raise Refused(codes.INVALID_ARGUMENT)
    board = board_of(asked.gpu)
    known = (board.shutdown_celsius, board.slowdown_celsius, board.memory_max_celsius, board.gpu_max_celsius)
    return _known(known[kind] if kind < len(known) else None)


def _power_constraints(asked: Asked) -> NamedAnswer:
    board = board_of(asked.gpu)
    if board.power_min_mw is None or board.power_max_mw is None:
        raise Refused(codes.NOT_SUPPORTED)
    return NamedAnswer((board.power_min_mw, board.power_max_mw))


def _energy(asked: Asked) -> NamedAnswer:
    return number(asked.gpu.energy.advance(asked.machine.clock(), power_draw_mw(asked.gpu)))


def _clock(asked: Asked) -> NamedAnswer:
    board = board_of(asked.gpu)
    busy = bool(busy_share(asked.gpu))
    return _clock_of_type(
        asked,
        graphics=board.graphics_max_mhz if busy else board.graphics_idle_mhz,
        memory=board.memory_mhz,
        video=board.video_max_mhz if busy else board.video_idle_mhz,
    )


def _max_clock(asked: Asked) -> NamedAnswer:
    board = board_of(asked.gpu)
    return _clock_of_type(asked, graphics=board.graphics_max_mhz, memory=board.memory_mhz, video=board.video_max_mhz)


def _applications_clock(asked: Asked) -> NamedAnswer:
    board = board_of(asked.gpu)
    return _clock_of_type(asked, graphics=board.graphics_default_mhz, memory=board.memory_mhz, video=None)


def _clock_of_type(asked: Asked, *, graphics: int | None, memory: int, video: int | None) -> NamedAnswer:
    match asked.request.numbers[0]:
        case 0 | 1:
            return _known(graphics)
        case 2:
            return _known(memory)
        case 3:
            return _known(video)
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


def _bar1_memory(asked: Asked) -> NamedAnswer:
    """A MIG device has the share of its memory slices, less the last MiB, as nvidia-smi prints it."""
    total_mib = board_of(asked.gpu).bar1_mib
    if total_mib is None:
        raise Refused(codes.NOT_SUPPORTED)
    used_mib = _BAR1_USED_MIB
    if asked.gpu_instance is not None:
        total_mib = total_mib * asked.gpu_instance.placement.size // asked.gpu.model.memory_slices - 1
        used_mib = 0
    return NamedAnswer((total_mib << 20, (total_mib - used_mib) << 20, used_mib << 20))


_FACTS: Final[dict[str, GpuRule]] = {
    "nvmlDeviceGetNumGpuCores": _fact(lambda board: board.cores),
    "nvmlDeviceGetMemoryBusWidth": _fact(lambda board: board.memory_bus_bits),
    "nvmlDeviceGetPowerManagementMode": lambda _asked: number(1),
    "nvmlDeviceGetPowerManagementLimit": _fact(lambda board: board.power_limit_mw),
    "nvmlDeviceGetPowerManagementDefaultLimit": _fact(lambda board: board.power_limit_mw),
    "nvmlDeviceGetEnforcedPowerLimit": _fact(lambda board: board.power_limit_mw),
    "nvmlDeviceGetCurrPcieLinkGeneration": _fact(lambda board: board.pcie_generation),
    "nvmlDeviceGetMaxPcieLinkGeneration": _fact(lambda board: board.pcie_generation),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda _asked: number(PCIE_WIDTH),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda _asked: number(PCIE_WIDTH),
    "nvmlDeviceGetPcieReplayCounter": _zero,
    "nvmlDeviceGetSupportedClocksEventReasons": lambda _asked: number(_ALL_REASONS),
    "nvmlDeviceGetFanSpeed": _refuse,
    "nvmlDeviceGetDriverModel_v2": _refuse,
    "nvmlDeviceGetNumFans": _zero,
    "nvmlDeviceGetPowerUsage": lambda asked: number(power_draw_mw(asked.gpu)),
    "nvmlDeviceGetTotalEnergyConsumption": _energy,
    "nvmlDeviceGetPowerManagementLimitConstraints": _power_constraints,
    "nvmlDeviceGetPerformanceState": _performance_state,
    "nvmlDeviceGetCurrentClocksEventReasons": _clocks_event_reasons,
    "nvmlDeviceGetEncoderUtilization": _engine_utilization,
    "nvmlDeviceGetDecoderUtilization": _engine_utilization,
    "nvmlDeviceGetJpgUtilization": _engine_utilization,
    "nvmlDeviceGetOfaUtilization": _engine_utilization,
}
"""Of a GPU, without arguments. The air of their server cools all boards here, so that none has a fan; models of drivers
are Windows's."""
_BY_TYPE: Final[dict[str, GpuRule]] = {
    "nvmlDeviceGetTemperature": _temperature,
    "nvmlDeviceGetTemperatureThreshold": _temperature_threshold,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetMaxClockInfo": _max_clock,
    "nvmlDeviceGetApplicationsClock": _applications_clock,
    "nvmlDeviceGetDefaultApplicationsClock": _applications_clock,
    "nvmlDeviceGetPcieThroughput": _pcie_throughput,
}
"""Of a GPU, with one argument: which sensor, clock or counter."""

ROWS: Final[tuple[Row, ...]] = (
    *(GpuRow(function=function, target="G", rule=rule) for function, rule in _FACTS.items()),
    *(GpuRow(function=function, target="G", numbers=1, rule=rule) for function, rule in _BY_TYPE.items()),
    GpuRow(function="nvmlDeviceGetUtilizationRates", target="D", rule=_utilization),
    GpuRow(function="nvmlDeviceGetProcessUtilization", target="D", numbers=1, rule=_process_utilization),
    GpuRow(function="nvmlDeviceGetBAR1MemoryInfo", target="D", rule=_bar1_memory),
)
