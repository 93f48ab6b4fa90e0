"""Clients of NVML as programs that run: those from Go modules built once per content, those from PyPI looked up.

A program that cannot be had raises `Missing`, which names what to install: these tests prove nothing where they are
left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from built_once import build_once

HERE = Path(__file__).resolve().parent
BUILD_TIMEOUT_S = 600


class Missing(pytest.fail.Exception):
    """What a stranger needs and this machine lacks, and where to get it: a test fails with that alone."""

    def __init__(self, what: str) -> None:
        super().__init__(what, pytrace=False)


def find_python_program(name: str) -> Path:
    """The program that pip installed beside this interpreter."""
    program = Path(sys.executable).parent / name
    if not program.exists():
        raise Missing(f"{program} is not there; install the extra: pip install -c constraints.txt -e '.[strangers]'")
    return program


def build_walker() -> Path:
    """Our walker over NVIDIA's Go binding."""
    return _build(HERE / "walker", ".")


def build_mig_parted() -> Path:
    """NVIDIA's nvidia-mig-parted, of the version that `mig_parted/go.mod` names."""
    return _build(HERE / "mig_parted", "github.com/NVIDIA/mig-parted/cmd/nvidia-mig-parted")


def find_nvml_header() -> Path:
    """The folder of NVIDIA's nvml.h, which comes with their Go binding: nothing of it is in this repository."""
    binding = "github.com/NVIDIA/go-nvml"
    _run_go(HERE / "walker", "mod", "download", binding)
    return Path(_run_go(HERE / "walker", "list", "-m", "-f", "{{.Dir}}", binding).strip()) / "pkg" / "nvml"


def _build(module: Path, package: str) -> Path:
    """The program's path, built if this content was not built before."""
    flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-extldflags=-Wl,-z,lazy"]

    def compile_to(program: Path) -> None:
        _run_go(module, "build", *flags, "-o", str(program), package)

    return build_once(f"stranger-{module.name}", module, compile_to)


def _run_go(module: Path, *arguments: str) -> str:
    """What `go` printed, in a module's folder."""
    # NVIDIA's binding leaves its symbols to be found at the call, which needs lazy binding; and its header marks much
    # of what it binds as deprecated.
    environment = {**os.environ, "CGO_ENABLED": "1", "CGO_CFLAGS": "-O2 -Wno-deprecated-declarations"}
    environment |= {"GOTOOLCHAIN": "local", "GOFLAGS": ""}
    command = ["go", *arguments]
    done = subprocess.run(
        command, cwd=module, env=environment, timeout=BUILD_TIMEOUT_S, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Missing(f"{module.name}: {' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout
