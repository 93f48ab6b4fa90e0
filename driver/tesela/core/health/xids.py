"""The Xids: what each means for a GPU, and what takes it back. Data, by the actions of NVIDIA's Xid catalogue.

The rule: an Xid whose immediate action is to restart the application, or none, is counted and shown, and condemns
nothing; one that asks for a reset makes the GPU unhealthy until it was reset. Where a row departs from that, a line
says why. What the catalogue lists as unused, or leaves to support, is no row: `signals.py` has one for all of those.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from tesela.core.health.model import Evidence, HealthState

XidRow: TypeAlias = tuple[int, str, HealthState, Evidence]

_APPLICATION: Final[dict[int, str]] = {
    8: "GPU stopped processing",
    11: "invalid or corrupted push buffer",
    13: "graphics engine exception",
    25: "invalid push buffer",
    31: "memory page fault",
    32: "invalid or corrupted push buffer",
    39: "copy engine exception",
    40: "copy engine exception",
    41: "copy engine exception",
    43: "GPU stopped processing",
    45: "preemptive cleanup after another error",
    60: "video processor exception",
    68: "video decoder exception",
    69: "graphics engine class error",
    70: "copy engine error",
    71: "copy engine error",
    72: "copy engine error",
    75: "copy engine error",
    76: "copy engine error",
    77: "copy engine error",
    80: "corrupted data sent to the GPU",
    82: "JPEG engine error",
    83: "video decoder error",
    84: "video decoder error",
    85: "copy engine error",
    86: "optical flow engine exception",
    88: "video decoder error",
    89: "video decoder error",
    94: "contained memory error",
    **dict.fromkeys((96, 97, 98), "video decoder error"),
    **dict.fromkeys(range(99, 106), "JPEG engine error"),
    **dict.fromkeys(range(126, 136), "copy engine error"),
    139: "optical flow engine error",
}
"""Immediate action: restart the application (43 and 45: none)."""

_NONE: Final[dict[int, str]] = {
    14: "test of error reporting",
    37: "driver firmware error",
    38: "driver firmware error",
    44: "graphics engine fault during a context switch",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    78: "vGPU start error",  # software of a hypervisor: update it
    93: "InfoROM wear limit exceeded",
    106: "test message of the management bus",
    107: "test message of the management bus",
    108: "NVLink remote translation error",
    121: "chip-to-chip link error",
    137: "NVLink privilege error",
    141: "CUDA fast path error",
    152: "deep learning accelerator error",
    153: "deep learning accelerator timeout",
    154: "recovery action changed",  # the action itself is read, and found under its own name
    160: "channel retired",
    161: "channel retirement failed",
    162: "power smoothing engaged again",
    163: "power smoothing disengaged",
}
"""Immediate action: none."""

_RESET: Final[dict[int, str]] = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",  # a workflow that ends in a reset, unless other signals say that it is contained
    62: "internal micro-controller halted",
    64: "row remapping failed",
    74: "NVLink error",  # a workflow as well; jobs over NVLink fail until the link is trained anew
    # 79 restarts the machine in the catalogue; a GPU that came back by a bus reset or a rescan was reset all the same.
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP firmware does not answer",
    120: "GSP firmware error",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    155: "NVLink error",
    156: "resource retired",
    158: "fatal timeout",
    # No action is published for the next three: 167 is as 79, and 171 and 172 come with 48 and say which memory it was.
    167: "PCIe fatal timeout",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}
"""Immediate action: reset the GPU."""

_LATER: Final[dict[int, str]] = {
    63: "row remapping recorded",  # no action, but the row is in use until the next reset
    92: "high rate of single-bit ECC errors",  # no action, then support: such memory is about to fail
    **dict.fromkeys(range(144, 151), "NVLink error"),  # part of each needs a reset; the recovery action tells which
    157: "resource retirement failed",  # no action, then support
    168: "less memory than the board has",  # no action published; what is published no longer fits
}
"""Immediate action: none, or none that is certain. The GPU works; it wants a reset before it is given out anew."""

_ROWS: Final = (
    (_APPLICATION, HealthState.HEALTHY, Evidence.RESET),
    (_NONE, HealthState.HEALTHY, Evidence.RESET),
    (_RESET, HealthState.UNHEALTHY, Evidence.RESET),
    (_LATER, HealthState.DEGRADED, Evidence.RESET),
)

XIDS: Final[tuple[XidRow, ...]] = (
    *((xid, meaning, state, evidence) for rows, state, evidence in _ROWS for xid, meaning in rows.items()),
    (54, "auxiliary power is not connected", HealthState.UNHEALTHY, Evidence.BOOT),  # check the cables
    (151, "key rotation error", HealthState.UNHEALTHY, Evidence.BOOT),  # restart the (virtual) machine
)
"""Every Xid with a row of its own."""
