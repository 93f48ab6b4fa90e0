"""What the tests of the C library need of a machine beyond Python, each in a word that says where to get it.

`python -m nvml.needs` names all that is missing at once, before `make test-nvml` builds anything; a test that is run
without what it needs fails with the same words.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("TESELA_NVML_LIBRARY", ROOT / "nvml-sim/build/libnvidia-ml.so.1"))
COMPILER = os.environ.get("CC") or "cc"
BUILT = ("library", "clients")
"""What `make test-nvml` itself brings about."""


def _are_there(*programs: str) -> bool:
    return all(shutil.which(program) for program in programs)


def _are_installed(*programs: str) -> bool:
    return all((Path(sys.executable).parent / program).exists() for program in programs)


_CHECKS = {
    "library": (LIBRARY.exists, f"{LIBRARY}; build it: make nvml-sim"),
    "compiler": (lambda: _are_there(COMPILER), f"a C compiler, `{COMPILER}`; Debian's package gcc, or name one in CC"),
    "make": (lambda: _are_there("make"), "make; Debian's package make"),
    "binutils": (lambda: _are_there("nm", "readelf"), "nm and readelf; Debian's package binutils"),
    "go": (lambda: _are_there("go"), "Go, of the version in tests/nvml/strangers/walker/go.mod or later: go.dev/dl"),
    "root": (
        lambda: os.geteuid() == 0 and _are_there("unshare", "mount"),
        "root, unshare and mount (Debian's util-linux): nvidia-mig-parted reads a /proc and a /sys put in their place",
    ),
    "clients": (
        lambda: _are_installed("nvitop", "gpustat"),
        "nvitop and gpustat beside this Python; pip install -c constraints.txt -e '.[strangers]'",
    ),
}


def list_missing(*names: str) -> list[str]:
    """A line for each of `names` that this machine lacks."""
    return [f"missing on this machine: {word}" for check, word in map(_CHECKS.__getitem__, names) if not check()]


def library(*names: str) -> list[pytest.MarkDecorator]:
    """The marks of tests of the library that need what is named besides; `conftest` looks."""
    return [pytest.mark.library, pytest.mark.needs("library", *names)]


def processes(group: str, *names: str) -> list[pytest.MarkDecorator]:
    """Those of tests that start many processes: more time, and one worker for the group."""
    return [*library(*names), pytest.mark.timeout(300), pytest.mark.xdist_group(group)]


if __name__ == "__main__":
    missing = list_missing(*(name for name in _CHECKS if name not in BUILT))
    sys.exit("\n".join(missing) or None)
