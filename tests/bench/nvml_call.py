"""`python -m bench.nvml_call`: what one NVML call costs a client of libnvidia-ml.so.1, times in ms as JSON.

A process of its own: the binding finds the library as every client does, by its name, when the process starts. The call
itself is timed, not what the binding does around it.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import pynvml

REPEATS = 5000


def main() -> None:
    """Prints the times of `REPEATS` calls of nvmlDeviceGetMinorNumber."""
    pynvml.nvmlInit()
    gpu, minor = pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint()
    call, out = pynvml.nvmlLib.nvmlDeviceGetMinorNumber, ctypes.byref(minor)
    times_ms = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        code = call(gpu, out)
        times_ms.append((time.perf_counter() - began) * 1000)
        if code != pynvml.NVML_SUCCESS:
            sys.exit(f"nvmlDeviceGetMinorNumber answers {code}")
    pynvml.nvmlShutdown()
    json.dump(times_ms, sys.stdout)


if __name__ == "__main__":
    main()
