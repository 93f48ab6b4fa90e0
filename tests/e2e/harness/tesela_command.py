"""Where the `tesela` command of this environment is, and the simulated libnvidia-ml.so.1."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.harness.build import HarnessError


def find_tesela() -> Path:
    """The command beside the Python that runs the tests."""
    command = Path(sys.executable).parent / "tesela"
    if not command.exists():
        raise HarnessError(f"{command} is not there: run the tests by `make e2e`, which installs the package")
    return command


def find_nvml_library() -> Path:
    """The library that `make nvml-sim` builds, in a folder of its own."""
    library = Path(__file__).resolve().parents[3] / "nvml-sim" / "build" / "libnvidia-ml.so.1"
    if not library.exists():
        raise HarnessError(f"{library} is not there: run the tests by `make e2e`, which builds it")
    return library
