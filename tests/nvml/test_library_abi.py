"""The library's binary interface is NVML's: layouts as the binding has them, version words, symbols, soname."""

import re
import subprocess

import pynvml
from nvml import layouts
from nvml import library as lib
from nvml.needs import library

pytestmark = library("compiler", "binutils")

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


def have_printed(tmp_path, expressions: list[str]) -> dict[str, int]:
    folder = lib.ROOT / "nvml-sim"
    return layouts.have_printed(tmp_path, expressions, include='#include "abi.h"', headers=folder)


def test_structs_are_laid_out_as_nvml_has_them(tmp_path):
    expected = layouts.expect_of_abi()
    assert have_printed(tmp_path, list(expected)) == expected


def test_version_words_are_those_of_the_binding(tmp_path):
    wanted = {f"STRUCT_VERSION({struct}, {version})": word for (struct, version), word in VERSIONS.items()}
    assert have_printed(tmp_path, list(wanted)) == wanted


def test_every_struct_is_compared():
    header = (lib.ROOT / "nvml-sim/abi.h").read_text()
    structs = set(re.findall(r"^\} (nvml\w+_t);", header, re.MULTILINE)) - {"nvmlReturn_t"}
    assert structs == {*layouts.STRUCTS, *layouts.UNBOUND}


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
