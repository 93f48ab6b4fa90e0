"""The admission policy of configs on a cluster: in force, and out of the way for tests of what prepare itself refuses.

The API server takes policies up and drops them a moment after they are written: both are seen on a claim that nobody
keeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from e2e.harness.build import HarnessError
from e2e.harness.cluster import Cluster
from e2e.harness.pods import render_claim, render_claim_spec, render_opaque, render_request
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

NAME = "tesela-configs"
DAEMONSET = Path(__file__).resolve().parents[3] / "daemonset"
FILE = DAEMONSET / "base" / "permissions" / "config-admission.yaml"
_BAD = render_claim(
    "nobody-keeps-this", render_claim_spec([render_request("core")], config=[render_opaque("GpuConfiguration")])
)


def wait_in_force(cluster: Cluster) -> None:
    """Until the API server refuses a bad config."""
    wait_until(f"policy {NAME} is in force", lambda: _refuses(cluster), timeout_s=30)


@contextlib.contextmanager
def without_config_policy(cluster: Cluster) -> Iterator[None]:
    """Bad configs reach prepare meanwhile, as where the policy is not installed."""
    cluster.kubectl("delete", "validatingadmissionpolicybinding", NAME)
    wait_until(f"policy {NAME} is out of force", lambda: not _refuses(cluster), timeout_s=30)
    try:
        yield
    finally:
        cluster.apply(FILE)
        wait_in_force(cluster)


@contextlib.contextmanager
def config_warnings(cluster: Cluster) -> Iterator[None]:
    """The component config-warnings over the shipped permissions: bad configs are warned of meanwhile."""
    folder = cluster.sandbox.folder / "config-warnings"
    folder.mkdir()
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(DAEMONSET / "base" / "permissions", folder.resolve())],
        "components": [os.path.relpath(DAEMONSET / "components" / "config-warnings", folder.resolve())],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(document))
    cluster.apply(folder)
    wait_until(f"policy {NAME} refuses no more", lambda: not _refuses(cluster), timeout_s=30)
    try:
        yield
    finally:
        cluster.apply(FILE)
        wait_in_force(cluster)


def hear_kubectl(cluster: Cluster, namespace: str, obj: Json) -> str:
    """What a user of kubectl hears of an attempt to create `obj`, which nobody keeps: warnings, a refusal."""
    kubectl = [cluster.binaries / "kubectl", f"--kubeconfig={cluster.certificates.path('admin.kubeconfig')}"]
    attempt = [*kubectl, "-n", namespace, "create", "--dry-run=server", "-o", "name", "-f", "-"]
    script = f"{shlex.join(map(str, attempt))} 2>&1 || true"
    return cluster.run(["sh", "-c", script], stdin=json.dumps(obj))


def _refuses(cluster: Cluster) -> bool:
    said = hear_kubectl(cluster, "default", _BAD)
    if "denied request" in said and NAME in said:
        return True
    if f"resourceclaim.resource.k8s.io/{_BAD['metadata']['name']}" not in said:
        raise HarnessError(f"a claim is refused by somebody else: {said}")
    return False
