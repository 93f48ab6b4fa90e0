"""The library, bound to nvidia-ml-py, before a simulated machine."""

import pytest
from nvml import library as lib


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
    with lib.served(socket_path) as server:
        yield server


@pytest.fixture
def nvml(server, library):
    """The library, initialised; its shutdown comes before the simulator's end."""
    assert library.nvmlInit_v2() == 0
    return library
