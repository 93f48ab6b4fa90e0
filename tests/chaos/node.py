"""One node for a chaos run: simulated GPUs behind their socket, an API behind HTTP, and the driver as a process.

GPUs, files and API outlive the driver, as they do on a real node. What is left on them is what `list_leftovers` sees.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from polling import until
from tesela.core.errors import TryAgain
from tesela.core.roster import Roster
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.server import ApiServer
from tesela.edge.kube.port import NODES, RESOURCE_SLICES
from tesela.edge.simulator.hosttree import HostTree
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.server import SimulatorServer
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore

from chaos.api import FaultyApi
from chaos.driver import START_TIMEOUT_S, DriverProcess

NODE_NAME = "node-1"
DRIVER = "gpu.nvidia.com"
NVML_TIMEOUT_S = 2.0
_SMI = "#!/bin/sh\nexit 0\n"


class ChaosNode:
    """The node, from `start` to `close`. One thread at a time exchanges drivers (`exchanging`)."""

    def __init__(self, gpus: str, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # a socket's path has at most 107 bytes
        self.machine = build_machine(gpus)
        HostTree(self.folder / "host", self.machine, make_nodes=False)
        self._simulator = SimulatorServer(self.machine, self.folder / "sim.sock")
        self.cluster = EmbeddedCluster()
        self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}})
        self.api = FaultyApi(self.cluster)
        self._server = ApiServer(self.api)
        self.registry_dir, self.cdi_dir = self.folder / "registry", self.folder / "cdi"
        self.state_dir = self.folder / "plugins" / DRIVER
        self.registry_dir.mkdir()
        self._pods = itertools.count(1)
        self.exchanging = threading.Lock()
        self._driver: DriverProcess | None = None

    def start(self, release: Path | None = None) -> None:
        """Everything serves, and a pool is published; by the driver of another `release` where one is given."""
        self._simulator.start()
        smi = self.folder / "host/usr/bin/nvidia-smi"
        smi.parent.mkdir(parents=True)
        smi.write_text(_SMI)
        smi.chmod(0o755)
        self._server.write_kubeconfig(self.folder / "kubeconfig")
        self._driver = self.make_driver(release)
        until(lambda: self.cluster.peek(RESOURCE_SLICES), START_TIMEOUT_S)

    @property
    def driver(self) -> DriverProcess:
        """The one that the kubelet calls now."""
        assert self._driver is not None, "start comes first"
        return self._driver

    def list_arguments(self) -> list[str]:
        """The driver's, but for its pod."""
        host = self.folder / "host"
        return [
            f"--node-name={NODE_NAME}",
            f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--nvml=simulated:unix:{self.folder / 'sim.sock'}",
            f"--nvml-timeout={NVML_TIMEOUT_S:g}",
            f"--plugins-dir={self.folder / 'plugins'}",
            f"--registry-dir={self.registry_dir}",
            f"--cdi-dir={self.cdi_dir}",
            f"--driver-root={host}",
            f"--dev-root={host}",
            f"--proc-root={host / 'proc'}",
            f"--sys-root={host / 'sys'}",
        ]

    def make_driver(self, release: Path | None = None) -> DriverProcess:
        """A driver of a new pod over the same folders and GPUs."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                pod_uid = f"pod-{next(self._pods)}"
                return DriverProcess(self.list_arguments(), self.registry_dir, pod_uid, self._tell, release)
            except TryAgain:
                # One that ends at its start, as while the API is away that a roster is rebuilt from, is started again.
                if time.monotonic() > end_s:
                    raise

    def kill_driver(self) -> None:
        """kill -9, then a new one."""
        with self.exchanging:
            self.driver.kill()
            self._wait_for_calls()
            self._driver = self.make_driver()

    def restart_driver(self, meanwhile: Callable[[], None], release: Path | None = None) -> None:
        """A stop in order, then a new one (of `release`); `meanwhile` happens while there is none."""
        with self.exchanging:
            self.driver.stop()
            self._wait_for_calls()
            meanwhile()
            self._driver = self.make_driver(release)

    def overlap_drivers(self) -> None:
        """A rolling update: the successor serves before its predecessor ends."""
        with self.exchanging:
            before, self._driver = self.driver, self.make_driver()
            with self._keep_marks():
                before.stop()
                self._wait_for_calls()

    @contextlib.contextmanager
    def _keep_marks(self) -> Iterator[None]:
        """What the kernel does for a process that ends inside it: its marks stay until its calls have returned.

        A simulated process ends at once, and its calls go on; which GPUs they are on is not asked.
        """
        marks = FileLocks(self.state_dir).call_marks
        with contextlib.ExitStack() as stack:
            for gpu in self.machine.snapshot().gpus:
                stack.enter_context(marks.hold(gpu.uuid, "a call"))
            yield

    def _wait_for_calls(self) -> None:
        """A process that is inside the kernel ends when its last call has returned, and what it holds ends then.

        The simulator's calls outlive whoever made them, so this stands for the end of the process.
        """
        assert until(lambda: not self.machine.list_calls(), START_TIMEOUT_S), "a call does not return"

    def close(self) -> int:
        """Ends everything; the driver's exit code."""
        code = self._driver.stop() if self._driver is not None else 0
        self.cluster.close()
        self._server.close()
        self._simulator.stop()
        shutil.rmtree(self.folder)
        return code

    def read_roster(self) -> Roster:
        """The names of the GPUs."""
        return RosterStore(self.state_dir).read_roster()

    def list_leftovers(self) -> list[str]:
        """What must not be there once every claim was given back."""
        instances = [
            f"GPU instance {instance.gi_id} of {gpu.uuid}"
            for gpu in self.machine.snapshot().gpus
            for instance in gpu.instances
        ]
        listing = RecordStore(self.state_dir).list()
        records = [f"record of claim {one.claim}: {one.state}" for one in listing.records]
        damaged = [f"damaged record {one.path}" for one in listing.unreadable]
        cdi = [f"CDI file of claim {uid}" for uid in CdiFiles(self.cdi_dir).list_ours()]
        metadata = [f"metadata of claim {uid}" for uid in MetadataFiles(self.state_dir).list_claims()]
        locks = [f"lock {path.name}" for path in (self.state_dir / "locks").glob("claim-*")]
        temporaries = [f"temporary {path}" for path in list_files(self.folder) if path.suffix == ".tmp"]
        return [*instances, *records, *damaged, *cdi, *metadata, *locks, *temporaries]


def list_files(folder: Path) -> list[Path]:
    """The files below a folder that changes meanwhile, by path."""
    return sorted(Path(where) / name for where, _, names in os.walk(folder) for name in names)
