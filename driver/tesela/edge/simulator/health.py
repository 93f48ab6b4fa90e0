"""The health of one simulated GPU: ECC, remapped rows and the recovery action, and what a reset does to them.

Volatile counters go with a reset or a driver reload, aggregate ones stay for the GPU's life; a row is remapped when it
is found bad and in use from the next reset on (nvml.h, nvmlDeviceGetRemappedRows). No locks and no events here:
`machine` brings them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tesela.edge.nvml import codes
from tesela.edge.nvml.port import EccMode, RemappedRows
from tesela.edge.simulator.models import GpuModel
from tesela.edge.simulator.refused import Refused

_TYPES: Final = (codes.ECC_CORRECTED, codes.ECC_UNCORRECTED)
_COUNTERS: Final = (codes.ECC_VOLATILE, codes.ECC_AGGREGATE)
_LOCATIONS: Final = (codes.MEMORY_LOCATION_DRAM, codes.MEMORY_LOCATION_SRAM)
"""Since Turing NVML counts errors of DRAM and SRAM and no longer by cache (nvmlMemoryLocation_t)."""
_ENDED_BY_RESET: Final = frozenset({1, 3, 4, 6})
"""Recovery actions that a reset of the GPU carries out or makes needless; 2, 5 and 7 concern the whole node."""
_BANKS: Final = {codes.ARCHITECTURE_AMPERE: 640}
_MOST_BANKS: Final = 2560
"""Banks of the row remapper as nvidia-smi prints them for an A100 (640) and an H100; other models are not known."""

_SINCE_AMPERE: Final = (
    codes.EVENT_SINGLE_BIT_ECC
    | codes.EVENT_DOUBLE_BIT_ECC
    | codes.EVENT_PSTATE
    | codes.EVENT_XID
    | codes.EVENT_MIG_CONFIG_CHANGE
)
_SINCE_HOPPER: Final = _SINCE_AMPERE | codes.EVENT_GPU_UNAVAILABLE | codes.EVENT_RECOVERY_ACTION
"""Which generations have the two newest types is not published; a driver has to live with both answers."""


@dataclass(slots=True, kw_only=True)
class GpuHealth:
    """State and rules. Callers hold the GPU's lock; a refusal raises Refused with NVML's code."""

    ecc_current: int = 1
    ecc_pending: int = 1
    errors: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """By error type, counter type and location."""
    remapped_correctable: int = 0
    remapped_uncorrectable: int = 0
    inactive_correctable: int = 0
    """Of the remapped rows, those that wait for a reset."""
    inactive_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failure: bool = False
    recovery_action: int = 0

    # ECC

    def ecc_mode(self) -> EccMode:
        return EccMode(current=self.ecc_current, pending=self.ecc_pending)

    def set_ecc_mode(self, mode: int) -> None:
        """nvmlDeviceSetEccMode: the mode holds from the next reset or reboot on."""
        if mode not in {0, 1}:
            raise Refused(codes.INVALID_ARGUMENT)
        self.ecc_pending = mode

    def total_ecc_errors(self, error_type: int, counter_type: int) -> int:
        """nvmlDeviceGetTotalEccErrors: the sum over all memories. NOT_SUPPORTED while ECC is off."""
        if error_type not in _TYPES or counter_type not in _COUNTERS:
            raise Refused(codes.INVALID_ARGUMENT)
        self._require_ecc()
        return self.count(error_type, counter_type)

    def count(self, error_type: int, counter_type: int) -> int:
        """The errors counted in all memories, whatever the ECC mode."""
        return sum(self.errors[error_type, counter_type, location] for location in _LOCATIONS)

    def memory_error_count(self, error_type: int, counter_type: int, location: int) -> int:
        """nvmlDeviceGetMemoryErrorCounter. NOT_SUPPORTED for memories but DRAM and SRAM, and while ECC is off."""
        if error_type not in _TYPES or counter_type not in _COUNTERS or not 0 <= location < codes.MEMORY_LOCATION_COUNT:
            raise Refused(codes.INVALID_ARGUMENT)
        self._require_ecc()
        if location not in _LOCATIONS:
            raise Refused(codes.NOT_SUPPORTED)
        return self.errors[error_type, counter_type, location]

    def sram_ecc_status(self) -> tuple[int, ...]:
        """nvmlEccSramErrorStatus_v1_t: its eleven counts in order, then whether a threshold is exceeded.

        Uncorrected errors count as SEC-DED and in the bucket "other": where they struck is not simulated.
        """
        self._require_ecc()
        corrected, uncorrected = (
            {counter: self.errors[kind, counter, codes.MEMORY_LOCATION_SRAM] for counter in _COUNTERS}
            for kind in _TYPES
        )
        aggregate, volatile = codes.ECC_AGGREGATE, codes.ECC_VOLATILE
        totals = (0, uncorrected[aggregate], corrected[aggregate], 0, uncorrected[volatile], corrected[volatile])
        return (*totals, 0, 0, 0, 0, uncorrected[aggregate], 0)

    def clear_ecc_counts(self, counter_type: int) -> None:
        """nvmlDeviceClearEccErrorCounts."""
        if counter_type not in _COUNTERS:
            raise Refused(codes.INVALID_ARGUMENT)
        self._require_ecc()
        for key in [key for key in self.errors if key[1] == counter_type]:
            del self.errors[key]

    def add_errors(self, error_type: int, count: int, *, location: int, volatile_only: bool = False) -> None:
        """Counts `count` errors more; the aggregate counter is spared where `volatile_only`."""
        self.errors[error_type, codes.ECC_VOLATILE, location] += count
        if not volatile_only:
            self.errors[error_type, codes.ECC_AGGREGATE, location] += count

    # Row remapping

    def remapped_rows(self, *, with_instances: bool) -> RemappedRows:
        """nvmlDeviceGetRemappedRows. NOT_SUPPORTED while the GPU has GPU instances (nvml.h)."""
        if with_instances:
            raise Refused(codes.NOT_SUPPORTED)
        return RemappedRows(
            correctable=self.remapped_correctable,
            uncorrectable=self.remapped_uncorrectable,
            pending=self.remap_pending,
            failure=self.remap_failure,
        )

    def row_remapper_histogram(self, model: GpuModel) -> tuple[int, int, int, int, int]:
        """nvmlDeviceGetRowRemapperHistogram: banks by spare rows left: max, high, partial, low, none.

        Each remapped row is taken to be the only one of its bank, a failed remapping to have used up another.
        """
        banks = _BANKS.get(model.architecture, _MOST_BANKS)
        used_up = int(self.remap_failure)
        high = min(self.remapped_correctable + self.remapped_uncorrectable, banks - used_up)
        return (banks - high - used_up, high, 0, 0, used_up)

    def remap(self, *, correctable: int, uncorrectable: int, pending: bool, failure: bool) -> None:
        """Remaps rows: at once, or, `pending`, from the next reset on. A failure stays for the GPU's life."""
        self.remapped_correctable += correctable
        self.remapped_uncorrectable += uncorrectable
        if pending:
            self.remap_pending = True
            self.inactive_correctable += correctable
            self.inactive_uncorrectable += uncorrectable
        self.remap_failure = self.remap_failure or failure

    # Field values and event types

    def field_value(self, field_id: int, *, with_instances: bool) -> int | None:
        """The field of nvmlDeviceGetFieldValues; None where it is not about health, or not supported now."""
        if field_id == codes.FIELD_RECOVERY_ACTION:
            return self.recovery_action
        if field_id in {codes.FIELD_ECC_CURRENT, codes.FIELD_ECC_PENDING}:
            return self.ecc_current if field_id == codes.FIELD_ECC_CURRENT else self.ecc_pending
        if with_instances:
            return None
        rows = {
            codes.FIELD_REMAPPED_CORRECTABLE: self.remapped_correctable,
            codes.FIELD_REMAPPED_UNCORRECTABLE: self.remapped_uncorrectable,
            codes.FIELD_REMAPPED_PENDING: int(self.remap_pending),
            codes.FIELD_REMAPPED_FAILURE: int(self.remap_failure),
            codes.FIELD_REMAPPED_CORRECTABLE_INACTIVE: self.inactive_correctable,
            codes.FIELD_REMAPPED_UNCORRECTABLE_INACTIVE: self.inactive_uncorrectable,
        }
        return rows.get(field_id)

    def supported_event_types(self, model: GpuModel) -> int:
        """nvmlDeviceGetSupportedEventTypes; ECC events need ECC (nvml.h, nvmlDeviceRegisterEvents)."""
        types = _SINCE_AMPERE if model.architecture == codes.ARCHITECTURE_AMPERE else _SINCE_HOPPER
        if not self.ecc_current:
            types &= ~(codes.EVENT_SINGLE_BIT_ECC | codes.EVENT_DOUBLE_BIT_ECC)
        return types

    # What ends what

    def reset(self) -> None:
        """A GPU reset or driver load: volatile counts go, remapped rows come into use, a pending ECC mode holds."""
        for key in [key for key in self.errors if key[1] == codes.ECC_VOLATILE]:
            del self.errors[key]
        self.inactive_correctable = self.inactive_uncorrectable = 0
        self.remap_pending = False
        self.ecc_current = self.ecc_pending
        if self.recovery_action in _ENDED_BY_RESET:
            self.recovery_action = 0

    def reboot(self) -> None:
        """A reboot of the node carries out every recovery action."""
        self.reset()
        self.recovery_action = 0

    def _require_ecc(self) -> None:
        if not self.ecc_current:
            raise Refused(codes.NOT_SUPPORTED)
