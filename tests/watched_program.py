"""A running driver that is scraped: the node program in this process with its metrics port, over simulated GPUs."""

from __future__ import annotations

import http.client
from dataclasses import replace
from pathlib import Path
from typing import Any

from node_program import make_program, open_watched, start
from polling import until
from prometheus_client.parser import text_string_to_metric_families
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.kubelet.client import PluginClient
from tesela.edge.kubelet.port import PrepareResult
from tesela.edge.telemetry.catalogue import BY_NAME
from tesela.plugin.main import Plugin
from tesela.plugin.observability import Observability
from tesela.plugin.service import ClaimService

Sample = tuple[str, dict[str, str], float]


def fetch(port: int, path: str, accept: str = "") -> tuple[int, str, str]:
    """Status, content type and body of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def parse(text: str) -> list[Sample]:
    """Every sample of an exposition, by Prometheus' own parser."""
    families = text_string_to_metric_families(text)
    return [(sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples]


class Watched:
    """The program; `start` may come later, as on a node without its GPU driver."""

    def __init__(self, folder: Path, gpus: str, **settings: Any) -> None:
        self.world, config = make_program(folder, gpus, nvml_timeout_s=settings.pop("nvml_timeout_s", 5))
        self.config = replace(config, metrics_port=0, metrics_address="127.0.0.1", **settings)
        self.watched = Observability(self.config)
        self.watched.start()
        self.plugin: Plugin | None = None

    def start(self) -> None:
        nvml = open_watched(self.world, self.config, self.watched.telemetry)
        self.plugin = Plugin(self.config, self.world.kube, nvml, telemetry=self.watched.telemetry)
        self.plugin.show(self.watched)
        start(self.plugin)
        self.world.node = self.plugin.node

    def close(self) -> None:
        self.world.machine.release()
        if self.plugin is not None:
            assert self.plugin.stop() == 0
        self.watched.close()
        self.world.kube.close()

    @property
    def port(self) -> int:
        assert self.watched.port is not None
        return self.watched.port

    def get(self, path: str, accept: str = "") -> tuple[int, str, str]:
        return fetch(self.port, path, accept)

    def scrape(self) -> list[Sample]:
        status, _, text = self.get("/metrics")
        assert status == 200, text
        return parse(text)

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """A metric's samples by label values, in the order of its labels in the catalogue."""
        metric = BY_NAME[name.removesuffix("_count").removesuffix("_sum")]
        samples = [(labels, value) for found, labels, value in self.scrape() if found == name]
        return {tuple(labels[label] for label in metric.labels): value for labels, value in samples}

    def becomes(self, name: str, labels: tuple[str, ...], value: float | None, timeout_s: float = 20.0) -> bool:
        return until(lambda: self.values(name).get(labels) == value, timeout_s)

    def register(self) -> PluginClient:
        """What the kubelet does first."""
        client = PluginClient(next(self.config.registry_dir.glob("*.sock")))
        client.register()
        return client

    def prepare(self, name: str, device: str) -> ClaimRef:
        """A claim that is served."""
        ref = self.world.claim(name, device)
        answer = self.ask(ref)
        assert not isinstance(answer, Refusal), answer.message
        return ref

    def ask(self, ref: ClaimRef) -> PrepareResult:
        """The kubelet's prepare of a claim."""
        return ClaimService(self.world.node).prepare([ref], 20)[ref.uid]

    def give_back(self, ref: ClaimRef) -> None:
        """The kubelet's unprepare of a claim."""
        assert ClaimService(self.world.node).unprepare([ref], 20) == {ref.uid: None}
