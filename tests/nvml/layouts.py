"""Sizes and offsets of NVML's structs, as NVIDIA's Python binding has them, and what a C header makes of them."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import pynvml
from nvml.needs import COMPILER

# Our name of a struct, and the binding's.
STRUCTS = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": pynvml.c_nvmlBAR1Memory_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlProcessInfo_v2_t": pynvml.c_nvmlProcessInfo_v2_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlDeviceAddressingMode_v1_t": pynvml.c_nvmlDeviceAddressingMode_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlSystemDriverBranchInfo_v1_t": pynvml.c_nvmlSystemDriverBranchInfo_v1_t,
    "nvmlUUID_v1_t": pynvml.c_nvmlUUID_t,
    "nvmlGpmSupport_t": pynvml.c_nvmlGpmSupport_t,
    "nvmlGpmMetricMetricInfo_t": pynvml.c_metricInfo_t,
    "nvmlGpmMetric_t": pynvml.c_nvmlGpmMetric_t,
    "nvmlGpmMetricsGet_t": pynvml.c_nvmlGpmMetricsGet_t,
    "nvmlValue_t": pynvml.c_nvmlValue_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlGpuFabricInfo_t": pynvml.c_nvmlGpuFabricInfo_t,
    "nvmlGpuFabricInfo_v2_t": pynvml.c_nvmlGpuFabricInfo_v2_t,
    "nvmlGpuFabricInfo_v3_t": pynvml.c_nvmlGpuFabricInfo_v3_t,
    "nvmlRowRemapperHistogramValues_t": pynvml.c_nvmlRowRemapperHistogramValues,
    "nvmlEccSramErrorStatus_v1_t": pynvml.c_nvmlEccSramErrorStatus_v1_t,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlPlacement_t": pynvml.c_nvmlGpuInstancePlacement_t,
    "nvmlGpuInstanceProfileInfo_t": pynvml.c_nvmlGpuInstanceProfileInfo_t,
    "nvmlGpuInstanceProfileInfo_v2_t": pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    "nvmlGpuInstanceInfo_t": pynvml.c_nvmlGpuInstanceInfo_t,
    "nvmlComputeInstanceProfileInfo_t": pynvml.c_nvmlComputeInstanceProfileInfo_t,
    "nvmlComputeInstanceProfileInfo_v2_t": pynvml.c_nvmlComputeInstanceProfileInfo_v2_t,
    "nvmlComputeInstanceInfo_t": pynvml.c_nvmlComputeInstanceInfo_t,
}
PLACEMENTS = ["nvmlGpuInstancePlacement_t", "nvmlComputeInstancePlacement_t"]
# What the binding lacks: sizes and offsets from NVML's documentation of the structs.
UNBOUND = {
    "nvmlProcessInfo_v1_t": (16, {"pid": 0, "usedGpuMemory": 8}),
    "nvmlGpuInstanceProfileInfo_v3_t": (
        152,
        {"version": 0, "id": 4, "sliceCount": 8, "ofaCount": 36, "memorySizeMB": 40, "name": 48, "capabilities": 144},
    ),
    "nvmlComputeInstanceProfileInfo_v3_t": (140, {"version": 0, "v1": 4, "name": 40, "capabilities": 136}),
}
SRAM_COUNTS = [name for name, _ in pynvml.c_nvmlEccSramErrorStatus_v1_t._fields_[1:-1]]


def our_name(struct: str, field: str) -> str:
    """Where abi.h says with one field what the binding says with many."""
    if struct == "nvmlEccSramErrorStatus_v1_t" and field in SRAM_COUNTS:
        return f"counts[{SRAM_COUNTS.index(field)}]"
    if struct == "nvmlComputeInstanceProfileInfo_v2_t" and field not in {"version", "name"}:
        return f"v1.{field}"
    return field


def expect_of_abi() -> dict[str, int]:
    """C expressions over abi.h, each with its value by the binding and the documentation."""
    expected = {}
    for struct, bound in STRUCTS.items():
        expected[f"sizeof({struct})"] = ctypes.sizeof(bound)
        expected |= {
            f"offsetof({struct}, {our_name(struct, name)})": getattr(bound, name).offset for name, *_ in bound._fields_
        }
    for struct, (size, fields) in UNBOUND.items():
        expected[f"sizeof({struct})"] = size
        expected |= {f"offsetof({struct}, {field})": offset for field, offset in fields.items()}
    return expected


def expect_of_header() -> dict[str, int]:
    """The same over NVIDIA's header, which names fields as the binding does; two names of it share our placement."""
    expected = {f"sizeof({struct})": size for struct, (size, _) in UNBOUND.items()}
    for ours, bound in STRUCTS.items():
        for struct in PLACEMENTS if ours == "nvmlPlacement_t" else [ours]:
            expected[f"sizeof({struct})"] = ctypes.sizeof(bound)
            expected |= {f"offsetof({struct}, {name})": getattr(bound, name).offset for name, *_ in bound._fields_}
    return expected


def have_printed(folder: Path, expressions: list[str], *, include: str, headers: Path) -> dict[str, int]:
    """The value of each C expression, by a program that begins with `include`."""
    prints = "\n".join(f'printf("%s\\"{text}\\": %zu", n++ ? ", " : "", (size_t)({text}));' for text in expressions)
    main = f'int main(void) {{ int n = 0; puts("{{"); {prints} puts("}}"); }}'
    (folder / "print.c").write_text(f"{include}\n#include <stddef.h>\n#include <stdio.h>\n{main}\n")
    command = [COMPILER, "-std=gnu11", "-w", "-I", str(headers), "-o", "print", "print.c"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return json.loads(subprocess.run([folder / "print"], check=True, capture_output=True, text=True).stdout)
