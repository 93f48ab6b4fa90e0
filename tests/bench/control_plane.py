"""A real etcd and API server without a kubelet, what Tesela ships applied to it, and an identity for the driver.

The driver gets what a DaemonSet's pod would have: a token bound to its pod and node, and the shipped RBAC and admission
policy, since both cost time at every call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from e2e.harness import components
from e2e.harness.certificates import create_certificates, write_kubeconfig
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.components import Settings
from e2e.harness.identity import ACCOUNT, NAMESPACE, Identity
from e2e.harness.processes import wait_until
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import NAMESPACES, NODES, PODS, Json

ROOT = Path(__file__).resolve().parents[2]
PERMISSIONS = ROOT / "daemonset" / "base" / "permissions"
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE", "APPLY"})
# What an API server writes about itself while nobody calls it.
OWN_WRITES = frozenset({"leases", "endpoints", "endpointslices", "flowschemas", "prioritylevelconfigurations"})


class ControlPlane(Cluster):
    """`up` takes about six seconds; the calling thread is in its network until `down`."""

    def _up(self, feature_gates: dict[str, bool]) -> None:
        folder = self.sandbox.folder
        self.certificates = create_certificates(folder / "pki")
        self.settings = Settings(
            binaries=self.binaries,
            folder=folder,
            certificates=self.certificates,
            cgroup=self.sandbox.cgroup,
            node=NODE,
            feature_gates=feature_gates,
        )
        self.run(["mount", "-t", "tmpfs", "tmpfs", "/run/cdi"])  # on a real node all of /run is one
        self.sandbox.join_network()
        self.start("etcd", components.render_etcd)
        self.start("apiserver", components.render_api_server)
        self.kube = KubeClient(load_config(str(self.certificates.path("admin.kubeconfig"))))
        wait_until("the API server is ready", lambda: self._is_up("apiserver", self._is_ready), timeout_s=60)
        wait_until(
            "namespace default exists",
            lambda: self._is_up("apiserver", lambda: self._exists(NAMESPACES, "default", None)),
            timeout_s=30,
        )
        self.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.apply(PERMISSIONS, ROOT / "deviceclasses")

    def create_identity(self, name: str) -> Identity:
        """A pod of the driver, which no kubelet will ever start, and its token."""
        pod: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "serviceAccountName": ACCOUNT,
                "nodeName": NODE,
                "containers": [{"name": "stand-in", "image": "none"}],
            },
        }
        uid = self.kube.create(PODS, pod)["metadata"]["uid"]
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={name}", f"--bound-object-uid={uid}"]
        token = self.kubectl("-n", NAMESPACE, "create", "token", ACCOUNT, "--duration=2h", *bound)
        folder = self.sandbox.folder / "identities" / name
        folder.mkdir(parents=True)
        (folder / "token").write_text(token.strip())
        kubeconfig = folder / "kubeconfig"
        write_kubeconfig(kubeconfig, self.certificates.path("ca.crt"), {"tokenFile": str(folder / "token")})
        return Identity(pod_name=name, pod_uid=uid, kubeconfig=kubeconfig)

    def count_writes(self) -> dict[str, int]:
        """Writes that the API server has answered since its start, by resource, but for those about itself."""
        writes: dict[str, int] = {}
        for labels, count in self._read_requests():
            resource = labels.get("resource", "")
            if labels.get("verb") in WRITES and resource not in OWN_WRITES:
                writes[resource] = writes.get(resource, 0) + count
        return writes

    def _read_requests(self) -> Iterator[tuple[dict[str, str], int]]:
        for line in self.kubectl("get", "--raw", "/metrics").splitlines():
            if line.startswith("apiserver_request_total{"):
                labels, _, value = line.rpartition("} ")
                yield dict(re.findall(r'(\w+)="([^"]*)"', labels)), int(float(value))
