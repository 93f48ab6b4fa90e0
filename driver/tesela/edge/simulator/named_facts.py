"""Named calls that answer the facts in `boards`: power limits, clocks at their most, memory, PCIe, cooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.boards import PCIE_WIDTH, Board
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import NO_ANSWER, GpuRow, GpuRule, Row, always, not_supported, number
from tesela.edge.simulator.targets import Asked, NamedAnswer
from tesela.edge.simulator.telemetry import board_of, clock_mhz, clock_of_type, known, power_limit_mw

_ALL_REASONS: Final = 0x1FF
_THRESHOLD_COUNT: Final = 8
_BAR1_USED_MIB: Final = 1
_BUS_TYPE_PCIE: Final = 2
_MBIT_OF_A_PCIE_LANE: Final = {4: 16_000, 5: 32_000}


def _fact(read: Callable[[Board], int | None]) -> GpuRule:
    return lambda asked: known(read(board_of(asked.gpu)))


def _temperature_threshold(asked: Asked) -> NamedAnswer:
    (kind,) = asked.request.numbers
    if not 0 <= kind < _THRESHOLD_COUNT:
        raise Refused(codes.INVALID_ARGUMENT)
    board = board_of(asked.gpu)
    thresholds = (board.shutdown_celsius, board.slowdown_celsius, board.memory_max_celsius, board.gpu_max_celsius)
    return known(thresholds[kind] if kind < len(thresholds) else None)


def _power_limit(asked: Asked) -> NamedAnswer:
    return number(power_limit_mw(asked.gpu))


def _power_constraints(asked: Asked) -> NamedAnswer:
    return NamedAnswer(_constraints(board_of(asked.gpu)))


def _set_power_limit(asked: Asked) -> NamedAnswer:
    """It holds until the driver is loaded again."""
    (limit_mw,) = asked.request.numbers
    least, most = _constraints(board_of(asked.gpu))
    if not least <= limit_mw <= most:
        raise Refused(codes.INVALID_ARGUMENT)
    asked.gpu.power_limit_mw = limit_mw
    return NO_ANSWER


def _constraints(board: Board) -> tuple[int, int]:
    if board.power_min_mw is None or board.power_max_mw is None:
        raise Refused(codes.NOT_SUPPORTED)
    return board.power_min_mw, board.power_max_mw


def _max_clock(asked: Asked) -> NamedAnswer:
    board = board_of(asked.gpu)
    graphics, video = board.graphics_max_mhz, board.video_max_mhz
    return known(clock_of_type(asked.request.numbers[0], graphics=graphics, memory=board.memory_mhz, video=video))


def _applications_clock(asked: Asked) -> NamedAnswer:
    board = board_of(asked.gpu)
    graphics = board.graphics_default_mhz
    return known(clock_of_type(asked.request.numbers[0], graphics=graphics, memory=board.memory_mhz, video=None))


def _customer_boost_clock(asked: Asked) -> NamedAnswer:
    """Only the graphics clock has one."""
    clock = clock_of_type(asked.request.numbers[0], graphics=board_of(asked.gpu).graphics_max_mhz, memory=0, video=None)
    return known(clock or None)


def _clock(asked: Asked) -> NamedAnswer:
    """The clock that an nvmlClockId_t means: now, as applications set it, its default, the customer's highest."""
    clock_type, clock_id = asked.request.numbers
    match clock_id:
        case 0:
            return known(clock_mhz(asked.gpu, clock_type))
        case 1 | 2:
            return _applications_clock(asked)
        case 3:
            return _customer_boost_clock(asked)
        case _:
            raise Refused(codes.INVALID_ARGUMENT)


def _pcie_speed(asked: Asked) -> NamedAnswer:
    return number(_MBIT_OF_A_PCIE_LANE[board_of(asked.gpu).pcie_generation])


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


_OF_A_GPU: Final[dict[str, GpuRule]] = {
    "nvmlDeviceGetNumGpuCores": _fact(lambda board: board.cores),
    "nvmlDeviceGetMemoryBusWidth": _fact(lambda board: board.memory_bus_bits),
    "nvmlDeviceGetPowerManagementMode": always(1),
    "nvmlDeviceGetPowerManagementLimit": _power_limit,
    "nvmlDeviceGetEnforcedPowerLimit": _power_limit,
    "nvmlDeviceGetPowerManagementDefaultLimit": _fact(lambda board: board.power_limit_mw),
    "nvmlDeviceGetPowerManagementLimitConstraints": _power_constraints,
    "nvmlDeviceGetPowerSource": always(0),
    "nvmlDeviceGetSupportedClocksEventReasons": always(_ALL_REASONS),
    "nvmlDeviceGetCurrPcieLinkGeneration": _fact(lambda board: board.pcie_generation),
    "nvmlDeviceGetMaxPcieLinkGeneration": _fact(lambda board: board.pcie_generation),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": _fact(lambda board: board.pcie_generation),
    # nvml.h numbers the speeds as PCIe numbers its generations.
    "nvmlDeviceGetPcieLinkMaxSpeed": _fact(lambda board: board.pcie_generation),
    "nvmlDeviceGetPcieSpeed": _pcie_speed,
    "nvmlDeviceGetCurrPcieLinkWidth": always(PCIE_WIDTH),
    "nvmlDeviceGetMaxPcieLinkWidth": always(PCIE_WIDTH),
    "nvmlDeviceGetPcieReplayCounter": always(0),
    "nvmlDeviceGetBusType": always(_BUS_TYPE_PCIE),
    "nvmlDeviceGetNumFans": always(0),
    "nvmlDeviceGetFanSpeed": not_supported,
    "nvmlDeviceGetMinMaxFanSpeed": not_supported,
}
"""All boards here are cooled by the air of their server, so that none has a fan."""
_BY_TYPE: Final[dict[str, GpuRule]] = {
    "nvmlDeviceGetFanSpeed_v2": not_supported,
    "nvmlDeviceGetTemperatureThreshold": _temperature_threshold,
    "nvmlDeviceGetMaxClockInfo": _max_clock,
    "nvmlDeviceGetMaxCustomerBoostClock": _customer_boost_clock,
    "nvmlDeviceGetApplicationsClock": _applications_clock,
    "nvmlDeviceGetDefaultApplicationsClock": _applications_clock,
}
"""With one argument: which fan, threshold or clock."""

ROWS: Final[tuple[Row, ...]] = (
    *(GpuRow(function=function, target="G", rule=rule) for function, rule in _OF_A_GPU.items()),
    *(GpuRow(function=function, target="G", numbers=1, rule=rule) for function, rule in _BY_TYPE.items()),
    GpuRow(function="nvmlDeviceGetClock", target="G", numbers=2, rule=_clock),
    GpuRow(function="nvmlDeviceSetPowerManagementLimit", target="G", numbers=1, changes=True, rule=_set_power_limit),
    GpuRow(function="nvmlDeviceGetBAR1MemoryInfo", target="D", rule=_bar1_memory),
)
