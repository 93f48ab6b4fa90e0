"""The names of functions that faults, latencies and hangs take: the port's, NVML's own, and NVML's older ones.

A C program may call an older or a newer form of a function; what reaches the simulator is the one form that the C
library asks for, and that is the name a fault is known by. What a fault does is in `faults`; no rules here.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Final

from tesela.core.errors import DocumentError
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator.named import HANDLE_BY_INDEX, NAMED, UNSIMULATED, fault_name

ANY_FUNCTION: Final = "*"
_SUFFIX: Final = re.compile(r"(_v\d+|V)$")
ASKED_AS: Final = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlInit_v2": "nvmlInitWithFlags",
    "nvmlDeviceGetHandleByIndex": HANDLE_BY_INDEX,
    "nvmlDeviceGetPowerState": "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksThrottleReasons": "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlGpuInstanceGetInfo": "nvmlDeviceGetGpuInstanceById",
}
"""Functions that ask for another one: nvml-sim/device.def and the files beside it decide that."""
_NEVER_ASKED: Final = frozenset(
    {
        "nvmlErrorString",
        "nvmlEventSetCreate",
        "nvmlEventSetFree",
        "nvmlDeviceIsMigDeviceHandle",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleFree",
    }
)
"""What the C library tells from a handle alone."""


def method_of(function: str) -> str:
    """The name by which faults know `function`: the port's, or NVML's where the port has none.

    DocumentError: no such function, or one that never asks the simulator.
    """
    if function in FUNCTIONS or function == ANY_FUNCTION:
        return function
    if function in _NEVER_ASKED:
        raise DocumentError("function", f"{function} is answered without asking the simulator, so it cannot misbehave")
    asked = ASKED_AS.get(function, function)
    if asked not in _answered() and asked not in UNSIMULATED:
        asked = _by_stem().get(_SUFFIX.sub("", function), "")
    if not asked:
        raise DocumentError("function", f"{function!r} is no NVML function that is known here; {_hint(function)}")
    return fault_name(asked)


def list_functions() -> tuple[str, ...]:
    """NVML's names of everything that the simulator answers, sorted."""
    return tuple(sorted(_answered()))


@cache
def _answered() -> frozenset[str]:
    return frozenset({*FUNCTIONS.values(), *NAMED, HANDLE_BY_INDEX}) - _NEVER_ASKED


@cache
def _by_stem() -> dict[str, str]:
    """The function that is asked by its name without a suffix; the shortest name where two differ in nothing else."""
    return {_SUFFIX.sub("", name): name for name in sorted(_answered(), key=len, reverse=True)}


def _hint(function: str) -> str:
    known = {name.lower(): name for name in (*_answered(), *ASKED_AS, *UNSIMULATED)}
    close = difflib.get_close_matches(function.lower(), known, n=3, cutoff=0.0)
    return f"close to it are {', '.join(known[name] for name in close)}; `tesela sim fail --list` has all"
