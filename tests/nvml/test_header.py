"""The library's functions and structs are those of NVIDIA's nvml.h, of the version that the walker's go.mod pins.

A C file that includes the header and declares each function once more as our sources do is a compiler's to judge: it
names every function whose declarations conflict.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from nvml import c_sources, layouts
from nvml import library as lib
from nvml.needs import COMPILER, library
from nvml.strangers.programs import find_nvml_header

pytestmark = library("compiler", "binutils", "go")

INCLUDE = "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n"
"""Without the define, the header makes older names macros of newer ones."""


@pytest.fixture(scope="module")
def header():
    return find_nvml_header()


def list_conflicts(header, tmp_path, declarations: list[str]) -> list[str]:
    """The names of functions that the header declares otherwise, or not at all."""
    named = {c_sources.name_of(declaration): declaration for declaration in declarations}
    again = [f"__typeof__({name}) *known_{name};\n{declaration};" for name, declaration in named.items()]
    (tmp_path / "again.c").write_text(INCLUDE + "\n".join(again))
    command = [COMPILER, "-std=gnu11", "-w", "-fsyntax-only", "-I", str(header), "again.c"]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    conflicts = {name for line in errors for name in re.findall(r"\bnvml\w+", line) if name in named}
    if done.returncode and not conflicts:
        raise AssertionError(done.stderr)
    return sorted(conflicts)


def test_functions_are_declared_as_in_the_header(header, tmp_path):
    assert list_conflicts(header, tmp_path, list(c_sources.list_prototypes().values())) == []


@pytest.mark.parametrize(
    "declaration",
    [
        "nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, unsigned int *first, unsigned int *second)",
        "nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned long long *value)",
        "nvmlReturn_t nvmlDeviceGetNothing(nvmlDevice_t device)",
    ],
)
def test_a_wrong_declaration_is_found(declaration, header, tmp_path):
    assert len(list_conflicts(header, tmp_path, [declaration])) == 1


def test_an_enum_may_be_declared_as_its_number(header, tmp_path):
    declaration = "nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *value)"
    assert list_conflicts(header, tmp_path, [declaration]) == []


def test_every_exported_function_is_a_stub_or_declared():
    assert lib.list_exported() - lib.list_stubs() == set(c_sources.list_prototypes())


def test_every_function_of_the_header_is_exported(header):
    declared = set(re.findall(r"^nvmlReturn_t +DECLDIR +(nvml\w+)", (header / "nvml.h").read_text(), re.MULTILINE))
    assert (len(declared) > 300, declared - lib.list_exported()) == (True, set())


def test_structs_are_laid_out_as_in_the_header(header, tmp_path):
    expected = layouts.expect_of_header()
    assert layouts.have_printed(tmp_path, list(expected), include=INCLUDE, headers=header) == expected
