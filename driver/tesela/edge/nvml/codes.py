"""Numbers of NVML's ABI that the port speaks: return codes, modes, field ids. Source: nvml.h; nothing else."""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0
UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
ALREADY_INITIALIZED: Final = 5
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
INSUFFICIENT_POWER: Final = 8
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
IRQ_ISSUE: Final = 11
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
CORRUPTED_INFOROM: Final = 14
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
OPERATING_SYSTEM: Final = 17
LIB_RM_VERSION_MISMATCH: Final = 18
IN_USE: Final = 19
MEMORY: Final = 20
NO_DATA: Final = 21
VGPU_ECC_NOT_SUPPORTED: Final = 22
INSUFFICIENT_RESOURCES: Final = 23
FREQ_NOT_SUPPORTED: Final = 24
ARGUMENT_VERSION_MISMATCH: Final = 25
DEPRECATED: Final = 26
NOT_READY: Final = 27
GPU_NOT_FOUND: Final = 28
INVALID_STATE: Final = 29
RESET_TYPE_NOT_SUPPORTED: Final = 30
UNKNOWN: Final = 999

GPU_GONE: Final = (GPU_IS_LOST, NOT_FOUND)
"""How NVML says that a GPU it is asked about is not there any more."""

RETURN_CODES: Final[dict[str, int]] = {
    name: value for name, value in list(globals().items()) if name.isupper() and isinstance(value, int)
}
"""All return codes by name: nvmlReturn_t. Keep constants of other kinds below: they share numbers with these."""
HIGHEST_RETURN_CODE: Final = 30
"""nvmlReturn_t has no gaps below it; only UNKNOWN lies above."""

TEXTS: Final[dict[int, str]] = {
    SUCCESS: "Success",
    UNINITIALIZED: "Uninitialized",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    ALREADY_INITIALIZED: "Already Initialized",
    NOT_FOUND: "Not Found",
    INSUFFICIENT_SIZE: "Insufficient Size",
    INSUFFICIENT_POWER: "Insufficient External Power",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    TIMEOUT: "Timeout",
    IRQ_ISSUE: "Interrupt Request Issue",
    LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    FUNCTION_NOT_FOUND: "Function Not Found",
    CORRUPTED_INFOROM: "Corrupted infoROM",
    GPU_IS_LOST: "GPU is lost",
    RESET_REQUIRED: "GPU requires reset",
    OPERATING_SYSTEM: "The operating system has blocked the request.",
    LIB_RM_VERSION_MISMATCH: "RM has detected an NVML/RM version mismatch.",
    IN_USE: "In use by another client",
    MEMORY: "Insufficient Memory",
    NO_DATA: "No data",
    VGPU_ECC_NOT_SUPPORTED: "ECC is not supported on this vGPU",
    INSUFFICIENT_RESOURCES: "Insufficient Resources",
    FREQ_NOT_SUPPORTED: "Frequency not supported",
    ARGUMENT_VERSION_MISMATCH: "Argument version mismatch",
    DEPRECATED: "Deprecated",
    NOT_READY: "Not Ready",
    GPU_NOT_FOUND: "GPU Not Found",
    INVALID_STATE: "Invalid State",
    RESET_TYPE_NOT_SUPPORTED: "Reset type not supported",
    UNKNOWN: "Unknown Error",
}

GPU_INSTANCE_PROFILE_COUNT: Final = 18
"""Profile enums 0..17 (NVML_GPU_INSTANCE_PROFILE_COUNT)."""
COMPUTE_INSTANCE_PROFILE_COUNT: Final = 9
COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: Final = 7

MIG_DISABLED: Final = 0
MIG_ENABLED: Final = 1

FIELD_RESETLESS_MIG: Final = 184
"""NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: the MIG mode changes without a GPU reset."""

ARCHITECTURES: Final[dict[int, str]] = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
ARCHITECTURE_AMPERE: Final = 7
ARCHITECTURE_HOPPER: Final = 9

FABRIC_NOT_SUPPORTED: Final = 0
FABRIC_NOT_STARTED: Final = 1
FABRIC_IN_PROGRESS: Final = 2
FABRIC_COMPLETED: Final = 3

VIRTUALIZATION_NONE: Final = 0
VIRTUALIZATION_VGPU_GUEST: Final = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU: this is a vGPU inside a guest; MIG cannot be managed from here."""

ECC_CORRECTED: Final = 0
ECC_UNCORRECTED: Final = 1
ECC_VOLATILE: Final = 0
ECC_AGGREGATE: Final = 1
MEMORY_LOCATION_DRAM: Final = 2
MEMORY_LOCATION_SRAM: Final = 7
MEMORY_LOCATION_COUNT: Final = 8

FIELD_ECC_CURRENT: Final = 1
FIELD_ECC_PENDING: Final = 2
FIELD_REMAPPED_CORRECTABLE: Final = 142
FIELD_REMAPPED_UNCORRECTABLE: Final = 143
FIELD_REMAPPED_PENDING: Final = 144
FIELD_REMAPPED_FAILURE: Final = 145
FIELD_RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: what an operator must do with the GPU; a key of RECOVERY_ACTIONS."""
FIELD_REMAPPED_CORRECTABLE_INACTIVE: Final = 301
FIELD_REMAPPED_UNCORRECTABLE_INACTIVE: Final = 302

RECOVERY_ACTIONS: Final[dict[int, str]] = {
    0: "NONE",
    1: "GPU_RESET",
    2: "NODE_REBOOT",
    3: "DRAIN_P2P",
    4: "DRAIN_AND_RESET",
    5: "RECOVER_IMEX_DOMAIN",
    6: "BUS_RESET",
    7: "SYSTEM_REBOOT",
}

EVENT_SINGLE_BIT_ECC: Final = 0x1
EVENT_DOUBLE_BIT_ECC: Final = 0x2
EVENT_PSTATE: Final = 0x4
EVENT_XID: Final = 0x8
"""The only type whose data says something: the Xid's number, 999 for one that NVML does not know."""
EVENT_MIG_CONFIG_CHANGE: Final = 0x100
EVENT_SINGLE_BIT_ECC_STORM: Final = 0x200
EVENT_GPU_UNAVAILABLE: Final = 0x4000
EVENT_RECOVERY_ACTION: Final = 0x8000
EVENT_ALL: Final = 0xFF9F

# nvmlGpmMetricId_t, of which the driver shows one; the simulator answers these.
GPM_GRAPHICS_UTILIZATION: Final = 1
GPM_SM_UTILIZATION: Final = 2
GPM_DRAM_BANDWIDTH: Final = 10
"""nvmlEventTypeAll: a bit outside is none of NVML's."""

XID_FALLEN_OFF_THE_BUS: Final = 79
XID_RECOVERY_ACTION_CHANGED: Final = 154

COMPUTE_MODE_DEFAULT: Final = 0
COMPUTE_MODE_PROHIBITED: Final = 2
COMPUTE_MODE_EXCLUSIVE_PROCESS: Final = 3
