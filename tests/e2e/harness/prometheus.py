"""Debian's Prometheus inside the cluster, with the rules that daemonset/monitoring ships, and what it knows."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path

import yaml
from e2e.harness.build import HarnessError, get_prometheus
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.processes import Process, wait_until
from tesela.edge.kube.port import Json

MONITORING = Path(__file__).resolve().parents[3] / "daemonset" / "monitoring"
_ADDRESS = "127.0.0.1:9090"


def render_scrape(target: str) -> list[Json]:
    """scrape.yaml with `target` in place of what discovery finds: Debian's Prometheus has none for Kubernetes."""
    found = {
        "__meta_kubernetes_pod_label_app_kubernetes_io_part_of": "tesela",
        "__meta_kubernetes_pod_container_port_name": "metrics",
        "__meta_kubernetes_pod_node_name": NODE,
    }
    (job,) = yaml.safe_load((MONITORING / "scrape.yaml").read_text())["scrape_configs"]
    del job["kubernetes_sd_configs"]
    return [{**job, "static_configs": [{"targets": [target], "labels": found}]}]


class Prometheus:
    """One process that scrapes `target` every second, as scrape.yaml says."""

    def __init__(self, cluster: Cluster, target: str) -> None:
        folder = cluster.sandbox.folder / "prometheus"
        folder.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "alerts.yaml"), str(MONITORING / "old-names.yaml")],
            "scrape_configs": render_scrape(target),
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        argv = [
            get_prometheus() / "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={_ADDRESS}",
        ]
        self.process = cluster.processes["prometheus"] = Process(cluster.sandbox, "prometheus", argv)
        wait_until("Prometheus scrapes the driver", self._scrapes, timeout_s=30)

    def query(self, expression: str) -> list[Json]:
        """The series of an instant query, as {metric, value}. HarnessError where it is no PromQL."""
        data = self._get("query", query=expression)
        if data["resultType"] != "vector":
            raise HarnessError(f"{expression} is a {data['resultType']}")
        return list(data["result"])

    def list_rules(self) -> list[Json]:
        """Every rule as it was evaluated last."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def list_firing(self) -> dict[str, list[Json]]:
        """The labels of alerts that fire, by alert."""
        firing: dict[str, list[Json]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                firing.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return firing

    def stop(self) -> None:
        """Ends it."""
        self.process.stop()

    def _scrapes(self) -> bool:
        if not self.process.alive:
            raise HarnessError(f"Prometheus ended:\n{self.process.tail()}")
        return any(one["value"][1] == "1" for one in self.query("up"))

    def _get(self, path: str, **parameters: str) -> Json:
        url = f"http://{_ADDRESS}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # an error status is an OSError
            return dict(json.load(answer)["data"])
