"""Who the driver is on the cluster: a pod of the shipped ServiceAccount on the node, and a token bound to it.

The driver runs beside the cluster's containers, not in one, so a pod that sleeps stands for it: the API server then
issues a token that names that pod and its node, as a DaemonSet's pod would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.harness import images
from e2e.harness.certificates import write_kubeconfig
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import PODS, Json

NAMESPACE = "tesela"
ACCOUNT = "tesela-node-plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One pod of the driver: its UID and a kubeconfig that refers to its token by file."""

    pod_name: str
    pod_uid: str
    kubeconfig: Path


def create_identity(cluster: Cluster, name: str) -> Identity:
    """Creates the pod `name` and its token, valid for two hours."""
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "stand-in", "image": images.PAUSE, "imagePullPolicy": "Never"}],
        },
    }
    uid = cluster.kube.create(PODS, pod)["metadata"]["uid"]
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={name}", f"--bound-object-uid={uid}"]
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", ACCOUNT, "--duration=2h", *bound)
    folder = cluster.sandbox.folder / "identities" / name
    folder.mkdir(parents=True)
    (folder / "token").write_text(token.strip())
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(kubeconfig, cluster.certificates.path("ca.crt"), {"tokenFile": str(folder / "token")})
    wait_until(
        f"pod {name} is on the node",
        lambda: cluster.kube.get(PODS, name, NAMESPACE)["status"].get("phase") == "Running",
        timeout_s=30,
    )
    return Identity(pod_name=name, pod_uid=uid, kubeconfig=kubeconfig)
