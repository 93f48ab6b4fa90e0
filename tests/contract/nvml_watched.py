"""A simulated machine behind the watchdog, for the tests of what the watchdog adds. A module says which GPUS."""

from __future__ import annotations

import pytest
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml

LIMIT_S = 0.4
"""What a call may take."""


@pytest.fixture
def machine(request):
    """The module's GPUS; whatever hangs there returns when the test has ended."""
    machine = build_machine(request.module.GPUS)
    yield machine
    machine.release()


@pytest.fixture
def inner(machine):
    """The backend below the watchdog."""
    return SimulatedNvml(machine)


@pytest.fixture
def nvml(inner):
    nvml = WatchedNvml(inner, timeout_s=LIMIT_S)
    nvml.init()
    return nvml
