"""Every backend of the NVML port over one simulated machine, for the contract suite."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.nvml_library import SimulatedLibrary, loaded
from tesela.edge.nvml.native import NativeNvml
from tesela.edge.nvml.port import Nvml
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.machine import Machine, build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.remote import RemoteNvml
from tesela.edge.simulator.server import SimulatorServer

BACKENDS = ("in-process", "socket", "watched", "library")


@dataclass(frozen=True, slots=True)
class World:
    """A backend that was not initialised yet, and the machine behind it."""

    nvml: Nvml
    machine: Machine

    def gpu(self, index: int = 0) -> str:
        return self.machine.snapshot().gpus[index].uuid


@contextmanager
def open_world(backend: str, spec: str) -> Iterator[World]:
    machine = build_machine(spec)
    try:
        with _open(backend, machine) as nvml:
            yield World(nvml, machine)
    finally:
        machine.release()


@contextmanager
def _open(backend: str, machine: Machine) -> Iterator[Nvml]:
    match backend:
        case "in-process":
            yield SimulatedNvml(machine)
        case "watched":
            yield WatchedNvml(SimulatedNvml(machine), timeout_s=30)
        case "library":
            with loaded(SimulatedLibrary(machine)):
                yield NativeNvml()
        case "socket":
            with tempfile.TemporaryDirectory() as folder:
                server = SimulatorServer(machine, Path(folder) / "sim.sock")
                server.start()
                remote = RemoteNvml(server.path, timeout_s=30)
                try:
                    yield remote
                finally:
                    remote.close()
                    server.stop()
