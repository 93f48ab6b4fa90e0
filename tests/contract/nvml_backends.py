"""Every backend of the NVML port over one simulated machine, for the contract suite."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvml import library
from tesela.cli.sim import SOCKET_VARIABLE
from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml.native import NativeNvml
from tesela.edge.nvml.port import Nvml
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.machine import Machine, build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.remote import RemoteNvml
from tesela.edge.simulator.server import SimulatorServer

BACKENDS = ("in-process", "socket", "watched", pytest.param("library", marks=pytest.mark.library))
"""`library` is what runs on a node: the driver's code, the binding, the C library, and the simulator at its end."""
MACHINE = "a100-40gb:mig,h100-80gb:fabric,rtx-pro-6000:mig"
A100, H100, PRO = 0, 1, 2


@dataclass(frozen=True, slots=True)
class World:
    """A backend that was not initialised yet, the machine behind it, and the server between them if there is one."""

    nvml: Nvml
    machine: Machine
    server: SimulatorServer | None = None

    def gpu(self, index: int = 0) -> str:
        return self.machine.snapshot().gpus[index].uuid


@contextmanager
def open_world(backend: str, spec: str) -> Iterator[World]:
    machine = build_machine(spec)
    try:
        with _open(backend, machine) as world:
            yield world
    finally:
        machine.release()


@contextmanager
def open_initialised(backend: str) -> Iterator[World]:
    """`MACHINE` behind a backend that was initialised."""
    with open_world(backend, MACHINE) as world:
        world.nvml.init()
        yield world


def at(start: int, size: int) -> Placement:
    return Placement(start=start, size=size)


def code_of(call: Callable[..., object], *arguments: object) -> int:
    """The code of the NvmlError that `call` ends with."""
    with pytest.raises(NvmlError) as refused:
        call(*arguments)
    return refused.value.code


@contextmanager
def _open(backend: str, machine: Machine) -> Iterator[World]:
    match backend:
        case "in-process":
            yield World(SimulatedNvml(machine), machine)
        case "watched":
            yield World(WatchedNvml(SimulatedNvml(machine), timeout_s=30), machine)
        case "library":
            with serve(machine) as server, library_at(server.path):
                yield World(NativeNvml(), machine, server)
        case "socket":
            with serve(machine) as server:
                remote = RemoteNvml(server.path, timeout_s=30)
                try:
                    yield World(remote, machine, server)
                finally:
                    remote.close()


@contextmanager
def serve(machine: Machine) -> Iterator[SimulatorServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = SimulatorServer(machine, Path(folder) / "sim.sock")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def library_at(path: Path) -> Iterator[CDLL]:
    """The C library under the binding, for the simulator at `path`: it reads the variable at each first nvmlInit."""
    before = os.environ.get(SOCKET_VARIABLE)
    os.environ[SOCKET_VARIABLE] = str(path)
    try:
        with library.bound() as loaded:
            yield loaded
    finally:
        if before is None:
            del os.environ[SOCKET_VARIABLE]
        else:
            os.environ[SOCKET_VARIABLE] = before
