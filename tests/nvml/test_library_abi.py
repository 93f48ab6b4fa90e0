"""The library's binary interface is NVML's: layouts as the binding has them, version words, symbols, soname."""

import ctypes
import json
import re
import subprocess

import pynvml
import pytest
from nvml import library as lib

pytestmark = pytest.mark.library

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
# What the binding lacks: sizes and offsets from NVML's documentation of the structs.
UNBOUND = {
    "nvmlProcessInfo_v1_t": (16, {"pid": 0, "usedGpuMemory": 8}),
    "nvmlGpuInstanceProfileInfo_v3_t": (
        152,
        {"version": 0, "id": 4, "sliceCount": 8, "ofaCount": 36, "memorySizeMB": 40, "name": 48, "capabilities": 144},
    ),
    "nvmlComputeInstanceProfileInfo_v3_t": (140, {"version": 0, "v1": 4, "name": 40, "capabilities": 136}),
}
VERSIONS = {
    ("nvmlMemory_v2_t", 2): pynvml.nvmlMemory_v2,
    ("nvmlTemperature_v1_t", 1): pynvml.nvmlTemperature_v1,
    ("nvmlUUID_v1_t", 1): pynvml.nvmlUUID_v1,
    ("nvmlGpuFabricInfo_v2_t", 2): pynvml.nvmlGpuFabricInfo_v2,
    ("nvmlGpuFabricInfo_v3_t", 3): pynvml.nvmlGpuFabricInfo_v3,
    ("nvmlGpuInstanceProfileInfo_v2_t", 2): pynvml.nvmlGpuInstanceProfileInfo_v2,
    ("nvmlComputeInstanceProfileInfo_v2_t", 2): pynvml.nvmlComputeInstanceProfileInfo_v2,
    ("nvmlEccSramErrorStatus_v1_t", 1): pynvml.nvmlEccSramErrorStatus_v1,
    ("nvmlDeviceAddressingMode_v1_t", 1): pynvml.nvmlDeviceAddressingMode_v1,
    ("nvmlSystemDriverBranchInfo_v1_t", 1): pynvml.SystemDriverBranchInfo_v1,
}
SRAM_COUNTS = [name for name, _ in pynvml.c_nvmlEccSramErrorStatus_v1_t._fields_[1:-1]]


def our_name(struct: str, field: str) -> str:
    """Where abi.h says with one field what the binding says with many."""
    if struct == "nvmlEccSramErrorStatus_v1_t" and field in SRAM_COUNTS:
        return f"counts[{SRAM_COUNTS.index(field)}]"
    if struct == "nvmlComputeInstanceProfileInfo_v2_t" and field not in {"version", "name"}:
        return f"v1.{field}"
    return field


def list_layouts() -> dict[str, tuple[int, dict[str, int]]]:
    """What the binding and the documentation say."""
    layouts = dict(UNBOUND)
    for struct, bound in STRUCTS.items():
        fields = {our_name(struct, name): getattr(bound, name).offset for name, *_ in bound._fields_}
        layouts[struct] = (ctypes.sizeof(bound), fields)
    return layouts


def have_printed(tmp_path, lines: list[str]) -> dict[str, int]:
    """The value of each C expression in `lines`, by a program that includes abi.h."""
    prints = "\n".join(f'printf("%s\\"{line}\\": %zu", n++ ? ", " : "", (size_t)({line}));' for line in lines)
    source = f'#include "abi.h"\n#include <stdio.h>\nint main(void) {{ int n = 0; puts("{{"); {prints} puts("}}"); }}\n'
    (tmp_path / "print.c").write_text(source)
    command = ["cc", "-std=c11", "-I", str(lib.ROOT / "nvml-sim"), "-o", "print", "print.c"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    return json.loads(subprocess.run([tmp_path / "print"], check=True, capture_output=True, text=True).stdout)


def test_structs_are_laid_out_as_nvml_has_them(tmp_path):
    wanted = {}
    for struct, (size, fields) in list_layouts().items():
        wanted[f"sizeof({struct})"] = size
        wanted |= {f"offsetof({struct}, {field})": offset for field, offset in fields.items()}
    assert have_printed(tmp_path, list(wanted)) == wanted


def test_version_words_are_those_of_the_binding(tmp_path):
    wanted = {f"STRUCT_VERSION({struct}, {version})": word for (struct, version), word in VERSIONS.items()}
    assert have_printed(tmp_path, list(wanted)) == wanted


def test_every_struct_is_compared():
    header = (lib.ROOT / "nvml-sim/abi.h").read_text()
    structs = set(re.findall(r"^\} (nvml\w+_t);", header, re.MULTILINE)) - {"nvmlReturn_t"}
    assert structs == set(list_layouts())


def test_soname():
    dynamic = subprocess.run(["readelf", "-d", lib.LIBRARY], capture_output=True, text=True, check=True).stdout
    assert f"soname: [{lib.SONAME}]" in dynamic


def test_every_function_of_the_binding_is_exported():
    bound = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', (lib.pynvml_source()).read_text()))
    assert bound <= lib.list_exported()


def test_nothing_else_is_exported():
    assert {name for name in lib.list_exported() if not name.startswith("nvml")} == set()


def test_every_stub_is_exported():
    assert lib.list_stubs() <= lib.list_exported()


def test_only_libc_is_needed():
    dynamic = subprocess.run(["readelf", "-d", lib.LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[([^]]*)\]", dynamic))
    assert {name.split(".")[0] for name in needed} <= {"libc", "libpthread", "libasan", "libubsan", "libtsan"}


FIND_BY_SONAME = """
import ctypes, sys
import pynvml
first = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
pynvml._LoadNvmlLibrary()
address = lambda library: ctypes.cast(library.nvmlInit_v2, ctypes.c_void_p).value
print(address(first) == address(pynvml.nvmlLib))
"""


def test_the_binding_takes_a_library_that_is_loaded_already(tmp_path):
    # Without LD_LIBRARY_PATH the loader knows no other file of that name: only the soname can match.
    environment = {"PATH": "/usr/bin:/bin"} | lib.preloads()
    command = [lib.sys.executable, "-c", FIND_BY_SONAME, str(lib.LIBRARY)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "True"
