"""A whole embedded cluster for tests: one node with two devices and a shared counter, and a driver that is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic

from contract.kube_objects import DRIVER, NAMESPACE, device, device_class, resource_slice
from tesela.core.model import ClaimRef, PreparedDevice, Refusal
from tesela.edge.embedded.claim_controller import ClaimController
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.scheduler import Scheduler
from tesela.edge.kube.port import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Json
from tesela.edge.kubelet.port import PrepareResult

NODE = "node-a"
DEADLINE_S = 20.0
CDI_KIND = "test.example.com/claim"


def eventually(probe: Callable[[], object], cluster: EmbeddedCluster) -> object:
    """The first true answer of `probe`, asked after every change of the cluster and now and then."""
    end, seen = monotonic() + DEADLINE_S, 0
    while not (answer := probe()):
        if monotonic() > end:
            raise AssertionError(f"not within {DEADLINE_S} s; last answer {answer!r}")
        seen = cluster.wait_for_change(seen, 0.02)
    return answer


def make_cluster(devices: int = 2) -> EmbeddedCluster:
    """A cluster with one node, a class, and `devices` devices in one slice."""
    cluster = EmbeddedCluster()
    cluster.create(NODES, {"metadata": {"name": NODE}})
    cluster.create(DEVICE_CLASSES, device_class(DRIVER))
    publish(cluster, devices)
    return cluster


def publish(cluster: EmbeddedCluster, devices: int = 2) -> Json:
    return cluster.create(RESOURCE_SLICES, resource_slice(devices=[device(f"gpu-{i}") for i in range(devices)]))


@dataclass
class Control:
    """Claim controller and scheduler without threads: `settle` runs both until nothing changes."""

    cluster: EmbeddedCluster

    def __post_init__(self) -> None:
        self.controller = ClaimController(self.cluster)
        self.scheduler = Scheduler(self.cluster)

    def settle(self) -> None:
        before = -1
        while (now := self.cluster.wait_for_change(0, 0)) != before:
            before = now
            self.controller.sync()
            self.scheduler.sync()

    def pod(self, name: str) -> Json:
        return self.cluster.get(PODS, name, NAMESPACE)

    def scheduled(self, name: str) -> Json | None:
        conditions = self.pod(name)["status"].get("conditions", [])
        return next((entry for entry in conditions if entry["type"] == "PodScheduled"), None)

    def claims(self) -> tuple[Json, ...]:
        return self.cluster.list(RESOURCE_CLAIMS).items

    def devices_of(self, name: str) -> list[str]:
        """Devices of all claims that are reserved for the pod."""
        uid = self.pod(name)["metadata"]["uid"]
        return [
            result["device"]
            for claim in self.claims()
            if any(entry["uid"] == uid for entry in claim["status"].get("reservedFor", []))
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]

    def end(self, name: str, phase: str = "Succeeded") -> None:
        pod = self.pod(name)
        self.cluster.replace_status(PODS, {**pod, "status": {**pod["status"], "phase": phase}})


@dataclass
class FakeDriver:
    """A NodeService that writes one CDI file per claim. `refusals` are answered in order, one a call."""

    cluster: EmbeddedCluster
    cdi_dir: Path
    refusals: list[str] = field(default_factory=list)
    unprepare_refusals: list[str] = field(default_factory=list)
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    gate: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.gate.set()
        self.cdi_dir.mkdir(exist_ok=True)

    def prepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, PrepareResult]:
        self.calls.append(("prepare", tuple(claim.uid for claim in claims)))
        assert self.gate.wait(DEADLINE_S)
        if self.refusals:
            refusal = Refusal(message=self.refusals.pop(0))
            return {claim.uid: refusal for claim in claims}
        return {claim.uid: self._prepare(claim) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, str | None]:
        self.calls.append(("unprepare", tuple(claim.uid for claim in claims)))
        problem = self.unprepare_refusals.pop(0) if self.unprepare_refusals else None
        if problem is None:
            for claim in claims:
                (self.cdi_dir / f"{claim.uid}.json").unlink(missing_ok=True)
        return {claim.uid: problem for claim in claims}

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]

    def _prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        kept = self.cluster.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        results = kept["status"]["allocation"]["devices"]["results"]
        devices = []
        for result in results:
            node = {"path": f"/dev/{result['device']}", "hostPath": f"/host/{result['device']}"}
            edits = {"env": [f"DEVICE_{result['request'].upper()}={result['device']}"], "deviceNodes": [node]}
            devices.append({"name": f"{claim.uid}-{result['device']}", "containerEdits": edits})
        document = {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices}
        document["containerEdits"] = {"env": ["COMMON=1"]}
        (self.cdi_dir / f"{claim.uid}.json").write_text(json.dumps(document), encoding="utf-8")
        return tuple(
            PreparedDevice(
                request_names=(result["request"].split("/")[0],),
                pool_name=result["pool"],
                device_name=result["device"],
                cdi_device_ids=(f"{CDI_KIND}={claim.uid}-{result['device']}",),
            )
            for result in results
        )
