"""A host of simulated GPUs for clients that know nothing of it: a simulator, and programs that find our library."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvml.needs import LIBRARY
from nvml.simulator_process import SimulatorProcess, served_apart
from nvml.strangers.programs import find_python_program
from tesela.core.model import Placement
from tesela.edge.simulator.remote import RemoteNvml

RUN_TIMEOUT_S = 90

_IN_HOST_TREE = 'mount --bind "$1/sys" /sys && mount --bind "$1/proc" /proc && shift && exec "$@"'
"""The stand-in /sys and /proc over the real ones. /proc comes last: mount itself reads the real one."""


class Host:
    """`simulator` and its stand-in `tree`; `environment` is what a client needs to find it."""

    def __init__(self, simulator: SimulatorProcess, tree: Path) -> None:
        self._simulator, self._tree = simulator, tree
        self.socket = simulator.path
        library = {"LD_LIBRARY_PATH": str(LIBRARY.parent), "TESELA_SIM_SOCKET": str(self.socket)}
        self.environment = {**os.environ, **library}

    def kill(self) -> None:
        """Ends the simulator as a crash would."""
        self._simulator.kill()

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """The client's end, whatever its exit status."""
        argv = list(map(str, command))
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )

    def get_output(self, *command: str | Path) -> str:
        """What the client printed; it must end well and say nothing on stderr, where clients warn."""
        done = self.run(*command)
        if done.returncode or done.stderr:
            raise AssertionError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def in_host_tree(self, *command: str | Path) -> list[str | Path]:
        """`command` in a mount namespace of its own, whose /proc and /sys are the stand-in host's. Needs root."""
        return ["unshare", "--mount", "sh", "-c", _IN_HOST_TREE, "sh", self._tree, *command]

    def tesela(self, *words: str) -> str:
        """`tesela sim WORDS` on this host."""
        verb, *rest = words
        return self.get_output(find_python_program("tesela"), "sim", verb, "--socket", self.socket, *rest)

    def list_gpus(self) -> list[dict[str, Any]]:
        """The simulator's own view of its GPUs."""
        return self._simulator.ask(op="status")["gpus"]

    def list_layouts(self) -> list[dict[str, int]]:
        """Per GPU how many partitions of each profile live; `off` where MIG mode is off."""
        return [
            dict(Counter(instance["profile"] for instance in gpu["instances"])) if gpu["mig_current"] else {"off": 1}
            for gpu in self.list_gpus()
        ]

    def list_unknown(self) -> list[str]:
        """NVML functions that a client asked for and that the simulator does not know."""
        return re.findall(r"a client called (\S+), which the simulator does not know", self._simulator.read_log())

    def create_partition(self, index: int, profile_id: int, compute_profile: int, placement: Placement) -> str:
        """A partition made without the library; its MIG device's UUID."""
        nvml = RemoteNvml(self.socket, timeout_s=10)
        nvml.init()
        try:
            gpu = nvml.get_uuid(index)
            instance = nvml.create_gpu_instance(gpu, profile_id, placement)
            return nvml.create_compute_instance(gpu, instance.gi_id, compute_profile).mig_uuid
        finally:
            nvml.shutdown()


@contextmanager
def open_host(folder: Path, gpus: str) -> Iterator[Host]:
    """A host of `gpus` below `folder`, which serves; it ends with the block."""
    tree = folder / "host"
    with served_apart(folder / "sim.sock", gpus, host_root=tree) as simulator:
        yield Host(simulator, tree)
