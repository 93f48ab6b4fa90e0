"""One simulated node under measurement: the simulator's process, the driver's process, and the kubelet played by us."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from e2e.harness.build import HarnessError
from e2e.harness.cluster import NODE
from e2e.harness.driver import DRIVER, list_devices, list_slices
from e2e.harness.identity import Identity
from e2e.harness.processes import Process, wait_until
from e2e.harness.simulator import Simulator
from e2e.harness.tesela_command import find_tesela
from elf_files import install_libraries
from tesela.core.errors import ApiError
from tesela.edge.host.elf import MACHINES
from tesela.edge.kube.port import RESOURCE_SLICES, Json
from tesela.edge.kubelet.client import PluginClient
from tesela.edge.simulator.admin import SimulatorAdmin

from bench.control_plane import ControlPlane

START_TIMEOUT_S = 60.0
DRIVER_VERSION = "580.95.05"  # of the simulator's driver, unless its machine says otherwise
DRIVER_LIBRARIES = 45  # as a driver of that release has, each mounted twice into every container
_FIELDS = f"spec.driver={DRIVER},spec.nodeName={NODE}"


class BenchNode:
    """GPUs as in `gpus`, and at most one driver at a time."""

    def __init__(self, plane: ControlPlane, identity: Identity, gpus: str) -> None:
        self.plane = plane
        self.identity = identity
        self.driver: Process | None = None
        self.simulator = Simulator(plane, gpus)
        machine = MACHINES[os.uname().machine]
        install_libraries(self.simulator.driver_root, DRIVER_VERSION, machine=machine, others=DRIVER_LIBRARIES - 3)
        # The kubelet's folders under their own path, so that we reach the sockets from outside the sandbox.
        self.plugins_dir = plane.kubelet_folder / "plugins"
        self.registry_dir = plane.kubelet_folder / "plugins_registry"
        self.registry_dir.mkdir(parents=True, exist_ok=True)

    def start_driver(self) -> float:
        """Starts the driver; seconds from before its process is made until the API server shows its whole pool."""
        published = Published(self.plane)
        host = self.simulator.host
        argv: list[str | Path] = [
            find_tesela(),
            "plugin",
            f"--node-name={NODE}",
            f"--pod-uid={self.identity.pod_uid}",
            f"--kubeconfig={self.identity.kubeconfig}",
            "--nvml=real",
            f"--plugins-dir={self.plugins_dir}",
            f"--registry-dir={self.registry_dir}",
            f"--driver-root={self.simulator.driver_root}",
            f"--dev-root={host}",
            f"--proc-root={host / 'proc'}",
            f"--sys-root={host / 'sys'}",
        ]
        began = time.monotonic()
        self.driver = driver = Process(
            self.plane.sandbox, "driver", argv, environment=self.simulator.client_environment
        )
        self.plane.processes["driver"] = driver
        at = published.wait(driver.tail)
        wait_until("the registrar's socket is there", self._find_registrar, timeout_s=10)
        return at - began

    def connect(self) -> PluginClient:
        """The kubelet's connection to the driver."""
        client = PluginClient(self._find_registrar()[0])
        client.register()
        return client

    def list_devices(self) -> list[Json]:
        """What the driver publishes, in its order."""
        return list(list_devices(self.plane).values())

    def stop_driver(self) -> None:
        """SIGTERM; its slices and files stay."""
        if self.driver is not None:
            self.driver.stop()

    def clear(self) -> None:
        """Removes what a driver leaves on the node and in the API, for a first start."""
        shutil.rmtree(self.plugins_dir / DRIVER, ignore_errors=True)
        self.plane.run(["find", "/run/cdi", "-type", "f", "-delete"])
        for one in list_slices(self.plane):
            self.plane.kube.delete(RESOURCE_SLICES, one["metadata"]["name"])

    def close(self) -> None:
        """Stops both processes."""
        self.stop_driver()
        self.simulator.stop()
        self.clear()

    def get_resident_mib(self) -> float:
        """The driver's resident memory."""
        status = Path(f"/proc/{self._get_driver().pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def get_driver_cpu_s(self) -> float:
        """The processor time that the driver has used so far."""
        return _get_cpu_s(self._get_driver().pid)

    def get_simulator_cpu_s(self) -> float:
        """The processor time that the simulated NVML has used so far."""
        return _get_cpu_s(self.simulator.process.pid)

    def get_watched_s(self) -> float:
        """The part of that in which the simulator only looked whether a next request comes."""
        admin = SimulatorAdmin(self.simulator.socket)
        try:
            return float(admin.send({"op": "status"})["watched_s"])
        finally:
            admin.close()

    def _get_driver(self) -> Process:
        if self.driver is None:
            raise HarnessError("no driver was started on this node")
        return self.driver

    def _find_registrar(self) -> list[Path]:
        return sorted(self.registry_dir.glob("*.sock"))


def _get_cpu_s(pid: int) -> float:
    """To the microsecond, for any process: Linux encodes its CPU clock's id so (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


class Published:
    """Sees by a watch, without loading the API server, when the pool of the node is complete."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._seen: dict[str, Json] = {}
        self._done = threading.Event()
        self._at = 0.0
        listed = plane.kube.list(RESOURCE_SLICES, field_selector=_FIELDS)
        if listed.items:
            raise HarnessError("the node has slices already: a start is measured from none")
        self._thread = threading.Thread(target=self._watch, args=(listed.resource_version,), daemon=True)
        self._thread.start()

    def wait(self, tell: Callable[[], str]) -> float:
        """The moment (monotonic) at which it was; HarnessError with what `tell` says where it never is."""
        if not self._done.wait(START_TIMEOUT_S):
            raise HarnessError(f"no complete pool after {START_TIMEOUT_S:.0f} s:\n{tell()}")
        return self._at

    def _watch(self, version: str) -> None:
        try:
            events = self._plane.kube.watch(
                RESOURCE_SLICES, field_selector=_FIELDS, resource_version=version, timeout_s=START_TIMEOUT_S
            )
            for event in events:
                if event.type == "BOOKMARK":
                    continue
                self._seen[event.object["metadata"]["name"]] = event.object["spec"]["pool"]
                newest = max(pool["generation"] for pool in self._seen.values())
                current = [pool for pool in self._seen.values() if pool["generation"] == newest]
                if len(current) == current[0]["resourceSliceCount"]:
                    self._at = time.monotonic()
                    self._done.set()
                    return
        except ApiError:
            return  # `wait` tells that nothing came
