"""Helm on the cluster, as an operator runs it; its own files lie beside the cluster's and go with it."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.harness import build
from e2e.harness.cluster import Cluster
from tesela.edge.kube.port import Json

CHART = Path(__file__).resolve().parents[3] / "daemonset" / "chart" / "tesela"


class Helm:
    """One release in a namespace."""

    def __init__(self, cluster: Cluster, release: str, namespace: str) -> None:
        self.cluster = cluster
        self.release = release
        self.namespace = namespace
        self._home = cluster.sandbox.folder / "helm"

    def install(self, values: Json, *flags: str) -> str:
        """Installs the chart, waits until its pods are ready, and returns what Helm prints: the notes."""
        return self._with_values("install", values, "--create-namespace", "--wait", "--timeout=120s", *flags)

    def upgrade(self, values: Json, *flags: str) -> str:
        """Upgrades the release to these values alone, and waits likewise."""
        return self._with_values("upgrade", values, "--reset-values", "--wait", "--timeout=120s", *flags)

    def uninstall(self, *flags: str) -> str:
        """Removes the release and waits until its objects are gone."""
        return self.run("uninstall", self.release, "--wait", "--timeout=120s", *flags)

    def list_objects(self) -> str:
        """The manifest of the release as it stands."""
        return self.run("get", "manifest", self.release)

    def run(self, verb: str, *arguments: str | Path) -> str:
        """What any other command prints. HarnessError with Helm's complaint."""
        folders = [f"HELM_{name}_HOME={self._home / name.lower()}" for name in ("CACHE", "CONFIG", "DATA")]
        config = self.cluster.certificates.path("admin.kubeconfig")
        command = ["env", *folders, build.build_helm(), verb, *arguments]
        return self.cluster.run([*command, f"--kubeconfig={config}", f"--namespace={self.namespace}"], timeout_s=180)

    def _with_values(self, verb: str, values: Json, *flags: str) -> str:
        self._home.mkdir(exist_ok=True)
        file = self._home / f"{self.release}-values.json"
        file.write_text(json.dumps(values))
        return self.run(verb, self.release, CHART, f"--values={file}", *flags)
