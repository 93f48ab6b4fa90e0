"""`tesela plugin` as a process of its own, under the identity of a pod, with the folders a DaemonSet would mount."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from e2e.harness.build import HarnessError
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.identity import Identity
from e2e.harness.processes import Process, wait_until
from e2e.harness.simulator import Simulator
from e2e.harness.tesela_command import find_tesela
from tesela.edge.kube.port import RESOURCE_SLICES, Json

DRIVER = "gpu.nvidia.com"


class Driver:
    """One process of the driver; more than one may run at a time, each with an identity of its own."""

    def __init__(self, cluster: Cluster, simulator: Simulator, identity: Identity, *arguments: str) -> None:
        self.cluster = cluster
        self.simulator = simulator
        self.identity = identity
        self.arguments = arguments
        self.start()

    def start(self, *, through: Sequence[str | Path] = ()) -> None:
        """Starts the process, also again after its end, and returns when the kubelet has registered it.

        `through` is a command that runs the command which follows it.
        """
        kubelet = self.cluster.processes["kubelet"]
        before = kubelet.log.stat().st_size
        self.begin(through=through)
        wait_until("the kubelet registers the driver", lambda: self._is_registered(kubelet, before), timeout_s=30)

    def begin(self, *more: str, through: Sequence[str | Path] = ()) -> None:
        """Starts the process with `more` arguments, and waits for nothing."""
        host = self.simulator.host
        argv: list[str | Path] = [
            *through,
            find_tesela(),
            "plugin",
            f"--node-name={NODE}",
            f"--pod-uid={self.identity.pod_uid}",
            f"--kubeconfig={self.identity.kubeconfig}",
            "--nvml=real",
            f"--driver-root={self.simulator.driver_root}",
            f"--dev-root={host}",
            f"--proc-root={host / 'proc'}",
            f"--sys-root={host / 'sys'}",
            *self.arguments,
            *more,
        ]
        name = f"driver-{self.identity.pod_name}"
        self.process = Process(self.cluster.sandbox, name, argv, environment=self.simulator.client_environment)
        self.cluster.processes[name] = self.process

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is tidied."""
        self.process.kill()

    def stop(self) -> int:
        """SIGTERM and its exit status."""
        return self.process.stop()

    def _is_registered(self, kubelet: Process, offset: int) -> bool:
        if not self.process.alive:
            raise HarnessError(f"the driver ended:\n{self.process.tail()}")
        said = kubelet.read_since(offset)
        return any("Registered DRA plugin" in line and self.identity.pod_uid in line for line in said)


def list_slices(cluster: Cluster) -> list[Json]:
    """The driver's ResourceSlices of the node, by name."""
    slices = cluster.kube.list(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER},spec.nodeName={NODE}").items
    return sorted(slices, key=lambda one: one["metadata"]["name"])


def is_pool_complete(cluster: Cluster) -> bool:
    """Whether all slices of the pool's newest generation are there."""
    pools = [one["spec"]["pool"] for one in list_slices(cluster)]
    newest = max((pool["generation"] for pool in pools), default=0)
    current = [pool for pool in pools if pool["generation"] == newest]
    return bool(current) and len(current) == current[0]["resourceSliceCount"]


def list_devices(cluster: Cluster) -> dict[str, Json]:
    """Published devices by name."""
    return {device["name"]: device for one in list_slices(cluster) for device in one["spec"].get("devices", [])}


def list_cdi_files(cluster: Cluster) -> list[Path]:
    """Files in the CDI folder, whoever wrote them: the cluster has no other driver."""
    return sorted(cluster.cdi_folder.glob("*"))


def list_records(cluster: Cluster) -> dict[str, Json]:
    """The driver's claim records by claim UID."""
    folder = cluster.kubelet_folder / "plugins" / DRIVER
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.rglob("claims/*.json"))}
