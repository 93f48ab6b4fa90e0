"""The shipped admission webhook on a cluster: its component, the image, and a certificate of an authority of ours."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import trustme
from e2e.harness.cluster import Cluster
from e2e.harness.container_image import REFERENCE, build_image
from e2e.harness.deployed import IMAGE, NAMESPACE
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import PODS, Json, Resource

COMPONENT = Path(__file__).resolve().parents[3] / "daemonset" / "components" / "admission-webhook"
NAME = "tesela-admission"
CONFIGURATION = "tesela-configs"
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)


class Webhook:
    """Applied by `up` and removed by `down`; only the image's registry differs from what is shipped."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = cluster.sandbox.folder / "webhook"

    def up(self) -> None:
        """Returns when two replicas are ready."""
        self.cluster.import_image(build_image())
        self.folder.mkdir()
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "components": [os.path.relpath(COMPONENT, self.folder.resolve())],
            "images": [{"name": "tesela", "newName": IMAGE, "newTag": REFERENCE.partition(":")[2]}],
        }
        (self.folder / "kustomization.yaml").write_text(json.dumps(document))
        self.issue()
        self.cluster.kubectl("apply", "-k", str(self.folder))
        self.trust()
        self.wait_ready(2)

    def down(self) -> None:
        """Removes it."""
        self.cluster.kubectl("delete", "-k", str(self.folder), "--ignore-not-found", "--wait=false")

    def issue(self) -> None:
        """A new authority, and a certificate of it in the Secret."""
        self.authority = trustme.CA()
        issued = self.authority.issue_cert(f"{NAME}.{NAMESPACE}.svc")
        data = {"tls.crt": issued.cert_chain_pems[0].bytes(), "tls.key": issued.private_key_pem.bytes()}
        secret: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": f"{NAME}-tls", "namespace": NAMESPACE},
            "data": {name: base64.b64encode(text).decode() for name, text in data.items()},
        }
        self.cluster.apply(secret)

    def trust(self) -> None:
        """Tells the API server of the authority, as docs/admission.md has it."""
        bundle = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
        self.cluster.kubectl(
            "patch", "validatingwebhookconfiguration", CONFIGURATION, "--type=json", "-p", json.dumps(patch)
        )

    def scale(self, replicas: int) -> None:
        """Returns when so many replicas are ready, and none besides."""
        self.cluster.kubectl("-n", NAMESPACE, "scale", "deployment", NAME, f"--replicas={replicas}")
        self.wait_ready(replicas)

    def wait_ready(self, replicas: int) -> None:
        """Until so many pods are there, and all of them ready."""

        def ready() -> bool:
            status = self.cluster.kube.get(DEPLOYMENTS, NAME, NAMESPACE).get("status", {})
            return [status.get("readyReplicas", 0), len(self.list_pods())] == [replicas, replicas]

        wait_until(f"{replicas} replicas of {NAME} are ready", ready, timeout_s=90)

    def list_pods(self) -> list[Json]:
        """Its pods, those that are ending too."""
        pods = self.cluster.kube.list(PODS, NAMESPACE).items
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == NAME]
