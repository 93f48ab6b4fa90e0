"""Where the `tesela` command of this environment is."""

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
