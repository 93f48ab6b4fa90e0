"""Admin operations on a simulated GPU's health: `xid`, `ecc`, `remap`, `recovery-action`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.simulator.admin_fields import Fields
from tesela.edge.simulator.health import GpuHealth

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

MAX_XID: Final = 999
"""NVML's number for an Xid that it does not know; NVIDIA's catalogue stays far below."""
MOST_REMAPPED_ROWS: Final = 512
"""Of one GPU's memory, whatever the cause (NVIDIA GPU Memory Error Management, row remapping)."""
_ECC_MODES: Final = {"on": 1, "off": 0}


def _xid(machine: Machine, fields: Fields) -> None:
    gpu, xid = fields.text("gpu"), fields.number("xid")
    gi_id, ci_id = fields.optional_number("gi"), fields.optional_number("ci")
    fields.finish()
    if not 1 <= xid <= MAX_XID:
        raise DocumentError("xid", f"{xid} is outside 1..{MAX_XID}")
    machine.raise_xid(gpu, xid, gi_id=gi_id, ci_id=ci_id)


def _ecc(machine: Machine, fields: Fields) -> None:
    gpu, mode = fields.text("gpu"), fields.optional_text("mode")
    counts = {
        codes.ECC_CORRECTED: (fields.count("corrected"), codes.EVENT_SINGLE_BIT_ECC),
        codes.ECC_UNCORRECTED: (fields.count("uncorrected"), codes.EVENT_DOUBLE_BIT_ECC),
    }
    location = codes.MEMORY_LOCATION_SRAM if fields.flag("sram") else codes.MEMORY_LOCATION_DRAM
    volatile_only = fields.flag("volatile_only")
    fields.finish()
    if mode is not None and mode not in _ECC_MODES:
        raise DocumentError("mode", f"{mode!r} is neither on nor off")
    if mode is None and not any(count for count, _ in counts.values()):
        raise DocumentError("corrected", "nothing to do: give corrected or uncorrected errors, or a mode")

    def change(health: GpuHealth) -> int:
        if any(count for count, _ in counts.values()) and not health.ecc_current:
            raise DocumentError("gpu", "ECC is off there, so it counts no errors; turn the mode on, and reset it")
        if mode is not None:
            health.set_ecc_mode(_ECC_MODES[mode])
        types = 0
        for error_type, (count, event_type) in counts.items():
            if count:
                health.add_errors(error_type, count, location=location, volatile_only=volatile_only)
                types |= event_type
        return types

    machine.change_health(gpu, change)


def _remap(machine: Machine, fields: Fields) -> None:
    gpu = fields.text("gpu")
    correctable, uncorrectable = fields.count("correctable"), fields.count("uncorrectable")
    pending, failure = fields.flag("pending"), fields.flag("failure")
    fields.finish()
    if not (correctable or uncorrectable or pending or failure):
        raise DocumentError("correctable", "nothing to do: give rows, pending or failure")

    def change(health: GpuHealth) -> int:
        left = MOST_REMAPPED_ROWS - health.remapped_correctable - health.remapped_uncorrectable
        if correctable + uncorrectable > left:
            field = "correctable" if correctable else "uncorrectable"
            problem = f"a GPU has {MOST_REMAPPED_ROWS} spare rows, and this one has {left} left"
            raise DocumentError(field, problem)
        health.remap(correctable=correctable, uncorrectable=uncorrectable, pending=pending, failure=failure)
        return 0

    machine.change_health(gpu, change)


def _recovery_action(machine: Machine, fields: Fields) -> None:
    gpu, action = fields.text("gpu"), fields.number("action")
    fields.finish()
    if action not in codes.RECOVERY_ACTIONS:
        known = ", ".join(f"{number} {name}" for number, name in codes.RECOVERY_ACTIONS.items())
        raise DocumentError("action", f"NVML has no recovery action {action}; it has {known}")

    def change(health: GpuHealth) -> int:
        health.recovery_action = action
        return 0

    machine.change_health(gpu, change)


HEALTH_OPERATIONS: Final[dict[str, Callable[[Machine, Fields], None]]] = {
    "xid": _xid,
    "ecc": _ecc,
    "remap": _remap,
    "recovery-action": _recovery_action,
}
