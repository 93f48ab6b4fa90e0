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

from nvml.library import LIBRARY
from nvml.strangers.programs import Missing, find_python_program
from polling import until
from tesela.core.model import Placement
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.remote import RemoteNvml

RUN_TIMEOUT_S = 90
START_TIMEOUT_S = 30

_IN_HOST_TREE = 'mount --bind "$1/sys" /sys && mount --bind "$1/proc" /proc && shift && exec "$@"'
"""The stand-in /sys and /proc over the real ones. /proc comes last: mount itself reads the real one."""


class Host:
    """A simulator of `gpus` below `folder`; `environment` is what a client needs to find it."""

    def __init__(self, folder: Path, gpus: str) -> None:
        if not LIBRARY.exists():
            raise Missing(f"{LIBRARY} is not there; build it: make nvml-sim")
        self.socket, self.tree, self.log = folder / "sim.sock", folder / "host", folder / "sim.log"
        library = {"LD_LIBRARY_PATH": str(LIBRARY.parent), "TESELA_SIM_SOCKET": str(self.socket)}
        self.environment = {**os.environ, **library}
        serve = [*self._tesela("serve"), "--gpus", gpus, "--host-root", str(self.tree)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(serve, stdout=log, stderr=subprocess.STDOUT)

    def start(self) -> None:
        """Waits until the simulator serves."""
        if not until(lambda: "serving" in self.log.read_text() or self.process.poll() is not None, START_TIMEOUT_S):
            raise TimeoutError(f"the simulator did not come up in {START_TIMEOUT_S} s: {self.log.read_text()}")
        if self.process.poll() is not None:
            raise RuntimeError(f"the simulator ended: {self.log.read_text()}")

    def kill(self) -> None:
        """Ends the simulator as a crash would."""
        self.process.kill()
        self.process.wait(timeout=10)

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
        if os.geteuid() != 0:
            raise Missing("root is needed: the client reads /proc/modules and /sys, which a mount namespace replaces")
        return ["unshare", "--mount", "sh", "-c", _IN_HOST_TREE, "sh", self.tree, *command]

    def tesela(self, *words: str) -> str:
        """`tesela sim WORDS` on this host."""
        return self.get_output(*self._tesela(*words))

    def list_gpus(self) -> list[dict[str, Any]]:
        """The simulator's own view of its GPUs."""
        admin = SimulatorAdmin(self.socket)
        try:
            return admin.send({"op": "status"})["gpus"]
        finally:
            admin.close()

    def list_layouts(self) -> list[dict[str, int]]:
        """Per GPU how many partitions of each profile live; `off` where MIG mode is off."""
        return [
            dict(Counter(instance["profile"] for instance in gpu["instances"])) if gpu["mig_current"] else {"off": 1}
            for gpu in self.list_gpus()
        ]

    def list_unknown(self) -> list[str]:
        """NVML functions that a client asked for and that the simulator does not know."""
        return re.findall(r"a client called (\S+), which the simulator does not know", self.log.read_text())

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

    def _tesela(self, verb: str, *words: str) -> list[str]:
        return [str(find_python_program("tesela")), "sim", verb, "--socket", str(self.socket), *words]


@contextmanager
def open_host(folder: Path, gpus: str) -> Iterator[Host]:
    """A host that serves; it ends with the block."""
    host = Host(folder, gpus)
    try:
        host.start()
        yield host
    finally:
        host.kill()
