"""The library, bound to nvidia-ml-py, before a simulated machine."""

import pynvml
import pytest
from contract.sim_command import served
from nvml import library as lib
from nvml.needs import list_missing
from nvml.simulator_process import served_apart

PROFILE_3G = 9


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(names): what the test needs of the machine, see nvml/needs.py")


def pytest_runtest_setup(item):
    missing = [line for mark in item.iter_markers("needs") for line in list_missing(*mark.args)]
    if missing:
        pytest.fail("\n".join(missing), pytrace=False)


@pytest.fixture
def socket_path(tmp_path, monkeypatch):
    """Where the library looks for a simulator; there is none yet."""
    path = tmp_path / "sim.sock"
    monkeypatch.setenv("TESELA_SIM_SOCKET", str(path))
    return path


@pytest.fixture
def library(socket_path):
    """The library, not initialised."""
    with lib.bound() as library:
        yield library


@pytest.fixture
def server(socket_path):
    """A simulator of `lib.MACHINE` in this process."""
    with served(socket_path, lib.MACHINE) as server:
        yield server


@pytest.fixture
def nvml(server, library):
    """The library, initialised; its shutdown comes before the simulator's end."""
    assert library.nvmlInit_v2() == 0
    return library


@pytest.fixture
def apart(socket_path):
    """A simulator of `lib.MACHINE` in a process of its own."""
    with served_apart(socket_path, lib.MACHINE) as simulator:
        yield simulator


@pytest.fixture
def gpu(nvml):
    """The A100, MIG mode on."""
    return pynvml.nvmlDeviceGetHandleByIndex(lib.A100)


@pytest.fixture
def other(nvml):
    """The H100."""
    return pynvml.nvmlDeviceGetHandleByIndex(lib.H100)


@pytest.fixture
def instance(gpu):
    """A 3g.20gb GPU instance of the A100."""
    return pynvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE_3G)


@pytest.fixture
def compute(instance):
    """A compute instance of one slice in it."""
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)


@pytest.fixture
def mig(compute):
    """The MIG device of `compute`."""
    return pynvml.nvmlComputeInstanceGetInfo(compute).device
