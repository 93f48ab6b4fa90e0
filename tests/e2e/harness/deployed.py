"""What daemonset/ ships, applied to the cluster as an operator does: an overlay, its pods, their own tokens.

Only what stands in front of an image's name, and where a test says so a path, differs from what is shipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from e2e.harness.certificates import write_kubeconfig
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.processes import wait_until
from e2e.harness.simulator import Simulator
from tesela.edge.kube.port import PODS, Json, Resource

OVERLAYS = Path(__file__).resolve().parents[3] / "daemonset" / "overlays"
NAMESPACE = "tesela"
DRIVER, SIM = "tesela-node-plugin", "tesela-sim"
IMAGE = "docker.io/library/tesela"
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True)
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
ROLLOUT_TIMEOUT_S = 120


class Overlay:
    """One overlay; `patches` are kustomize's, as a user writes them over it."""

    def __init__(self, cluster: Cluster, name: str, patches: Sequence[Json] = ()) -> None:
        self.cluster = cluster
        self.folder = cluster.sandbox.folder / "overlays" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        # kustomize takes no absolute path
        self._resource = os.path.relpath(OVERLAYS / name, self.folder.resolve())
        self._patches = list(patches)

    def render(self, tag: str) -> list[Json]:
        """Its objects, of the image `tag`."""
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [self._resource],
            "images": [{"name": "tesela", "newName": IMAGE, "newTag": tag}],
            "patches": self._patches,
        }
        (self.folder / "kustomization.yaml").write_text(json.dumps(document))
        rendered = self.cluster.run([self.cluster.binaries / "kubectl", "kustomize", self.folder])
        return list(yaml.safe_load_all(rendered))

    def apply(self, tag: str) -> list[Json]:
        """Applies it and returns what it applied; pods come by themselves."""
        objects = self.render(tag)
        self.cluster.kubectl("apply", "-k", str(self.folder))
        return objects

    def delete(self) -> None:
        """Removes what was applied last, and waits for its end, the namespace's among it."""
        self.cluster.kubectl("delete", "-k", str(self.folder), "--wait", "--timeout=120s")


def add_tag(cluster: Cluster, tag: str, other: str) -> None:
    """Calls the image `tag` also `other`, as if it were another release."""
    cluster.run([*cluster.ctr, "images", "tag", "--force", f"{IMAGE}:{tag}", f"{IMAGE}:{other}"])


def wait_rolled_out(cluster: Cluster, daemonset: str, timeout_s: int = ROLLOUT_TIMEOUT_S) -> None:
    """Until the pod of a DaemonSet is of its newest template and ready, and no older one is left."""

    def is_rolled_out() -> bool:
        one = cluster.kube.get(DAEMON_SETS, daemonset, NAMESPACE)
        status, generation = one["status"], one["metadata"]["generation"]
        counts = [status.get(name, 0) for name in ("updatedNumberScheduled", "numberAvailable")]
        return status.get("observedGeneration") == generation and counts == [1, 1]

    wait_until(f"{daemonset} is rolled out", is_rolled_out, timeout_s=timeout_s)
    wait_until(f"older pods of {daemonset} are gone", lambda: get_pod(cluster, daemonset), timeout_s=timeout_s)


def list_pods(cluster: Cluster, daemonset: str) -> list[Json]:
    """The pods of a DaemonSet that are there, oldest first, those that are ending too."""
    pods = cluster.kube.list(PODS, NAMESPACE).items
    found = [pod for pod in pods if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == daemonset]
    return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def get_pod(cluster: Cluster, daemonset: str) -> Json:
    """The only pod of a DaemonSet on a cluster of one node."""
    found = list_pods(cluster, daemonset)
    if len(found) != 1:
        raise LookupError(f"{len(found)} pods of {daemonset}: {[pod['metadata']['name'] for pod in found]}")
    return found[0]


def exec_in(cluster: Cluster, daemonset: str, *command: str) -> str:
    """What a command prints in the pod of a DaemonSet."""
    name = get_pod(cluster, daemonset)["metadata"]["name"]
    return cluster.kubectl("-n", NAMESPACE, "exec", name, "--", *command)


def run_python(cluster: Cluster, daemonset: str, program: str) -> str:
    """What a program prints in such a pod: its image has a Python and no shell."""
    return exec_in(cluster, daemonset, "python3", "-c", program)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a pod uses, as the kubelet's summary has it, which `kubectl top` shows."""

    working_set_bytes: int
    rss_bytes: int
    cpu_s: float


def read_usage(cluster: Cluster, daemonset: str) -> Usage:
    """Of the pod of a DaemonSet, since it started. LookupError: the kubelet has not measured it yet."""
    uid = get_pod(cluster, daemonset)["metadata"]["uid"]
    summary = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/stats/summary"))
    (container,) = {pod["podRef"]["uid"]: pod["containers"] for pod in summary["pods"]}[uid]
    return Usage(
        working_set_bytes=container["memory"]["workingSetBytes"],
        rss_bytes=container["memory"]["rssBytes"],
        cpu_s=container["cpu"]["usageCoreNanoSeconds"] / 1e9,
    )


def write_own_kubeconfig(cluster: Cluster) -> Path:
    """A kubeconfig with the very token that the driver's pod has."""
    folder = cluster.sandbox.folder / "identities"
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(run_python(cluster, DRIVER, f"print(open({TOKEN!r}).read())").strip())
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(kubeconfig, cluster.certificates.path("ca.crt"), {"tokenFile": str(folder / "token")})
    return kubeconfig


class SimulatorInPod(Simulator):
    """The GPUs of the DaemonSet tesela-sim, asked through the folder that it shares with its host."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        folder = cluster.sandbox.folder / "run" / "tesela-sim"
        self.host, self.socket = folder / "host", folder / "nvml.sock"
