"""Named calls about errors and events; the rules are those of `health` and `events`."""

from __future__ import annotations

from typing import Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import NO_ANSWER, GpuRow, Row, always, not_supported, number
from tesela.edge.simulator.targets import Asked, NamedAnswer


def _memory_error_counter(asked: Asked) -> NamedAnswer:
    return number(asked.gpu.health.memory_error_count(*asked.request.numbers))


def _sram_ecc_status(asked: Asked) -> NamedAnswer:
    return NamedAnswer(asked.gpu.health.sram_ecc_status())


def _row_remapper_histogram(asked: Asked) -> NamedAnswer:
    return NamedAnswer(asked.gpu.health.row_remapper_histogram(asked.gpu.model))


def _clear_ecc_counts(asked: Asked) -> NamedAnswer:
    asked.gpu.health.clear_ecc_counts(asked.request.numbers[0])
    return NO_ANSWER


def _set_ecc_mode(asked: Asked) -> NamedAnswer:
    asked.gpu.health.set_ecc_mode(asked.request.numbers[0])
    return NO_ANSWER


def _supported_event_types(asked: Asked) -> NamedAnswer:
    return number(asked.gpu.health.supported_event_types(asked.gpu.model))


def _register_events(asked: Asked) -> NamedAnswer:
    """Events of MIG devices are not reported apart (nvmlDeviceRegisterEvents)."""
    if asked.is_mig_device:
        raise Refused(codes.NOT_SUPPORTED)
    mask = asked.request.numbers[0]
    if mask < 0:
        raise Refused(codes.INVALID_ARGUMENT)
    return number(asked.machine.register_events(asked.gpu, mask))


ROWS: Final[tuple[Row, ...]] = (
    GpuRow(function="nvmlDeviceGetMemoryErrorCounter", target="G", numbers=3, rule=_memory_error_counter),
    GpuRow(function="nvmlDeviceGetSramEccErrorStatus", target="G", rule=_sram_ecc_status),
    GpuRow(function="nvmlDeviceGetRowRemapperHistogram", target="G", rule=_row_remapper_histogram),
    GpuRow(function="nvmlDeviceClearEccErrorCounts", target="G", numbers=1, changes=True, rule=_clear_ecc_counts),
    GpuRow(function="nvmlDeviceSetEccMode", target="G", numbers=1, changes=True, rule=_set_ecc_mode),
    GpuRow(function="nvmlDeviceGetDefaultEccMode", target="G", rule=always(1)),
    # Since Ampere rows are remapped instead.
    GpuRow(function="nvmlDeviceGetRetiredPagesPendingStatus", target="G", rule=not_supported),
    GpuRow(function="nvmlDeviceGetSupportedEventTypes", target="G", rule=_supported_event_types),
    GpuRow(function="nvmlDeviceRegisterEvents", target="D", numbers=1, rule=_register_events),
)
