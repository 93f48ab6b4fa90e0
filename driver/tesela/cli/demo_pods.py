"""The demo's pods: creates and ends them, and says what each holds or why it waits.

What a pod holds is read from the driver's record of its claim; why it waits, from the conditions in its status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tesela.cli.demo_bridge import JOB_NAMESPACE, render_job
from tesela.cli.demo_node import DemoNode
from tesela.cli.mig_map import WHOLE
from tesela.core.errors import ApiNotFound, StateError
from tesela.edge.kube.port import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Json

NO_ROOM: Final = "nodes are available"
"""In the scheduler's message once it has looked at every node and found none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """Which pod."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A pod and what it holds; `mig_uuid` is None for a whole GPU."""

    pod: str
    profile: str
    device: str
    mig_uuid: str | None


class DemoPods:
    """Pods of the cluster of `node`. A job is a pod with a claim template of its own, all in one namespace."""

    def __init__(self, node: DemoNode) -> None:
        self._node = node
        self._cluster = node.cluster

    def list_all(self) -> tuple[PodName, ...]:
        """Every pod there is."""
        metadata = [pod["metadata"] for pod in self._cluster.peek(PODS)]
        return tuple(PodName(namespace=one["namespace"], name=one["name"]) for one in metadata)

    def list_jobs(self) -> tuple[PodName, ...]:
        """Jobs that nobody has ended yet."""
        metadata = [pod["metadata"] for pod in self._cluster.peek(PODS)]
        return tuple(
            PodName(namespace=JOB_NAMESPACE, name=one["name"])
            for one in metadata
            if one["namespace"] == JOB_NAMESPACE and not one.get("deletionTimestamp")
        )

    def create_job(self, name: str, profile: str) -> PodName:
        """Applies a job that asks for `profile` ("" is a whole GPU)."""
        for resource, document in render_job(name, profile):
            self._cluster.create(resource, document)
        return PodName(namespace=JOB_NAMESPACE, name=name)

    def delete(self, pod: PodName) -> None:
        """Ends a pod, and a job's template with it; the pod goes once its claim is unprepared."""
        for resource in (PODS, RESOURCE_CLAIM_TEMPLATES):
            try:
                self._cluster.delete(resource, pod.name, pod.namespace)
            except ApiNotFound:
                continue

    def runs(self, pod: PodName) -> bool:
        """Whether its claims are prepared and its containers started."""
        return bool(self._status(pod).get("phase") == "Running")

    def settled(self, pod: PodName) -> bool:
        """Whether it runs, or no node has room for it. StateError: the scheduler failed on it."""
        condition = next((one for one in self._conditions(pod) if one["type"] == "PodScheduled"), {})
        if condition.get("reason") == "SchedulerError":
            raise StateError(f"the scheduler failed on pod {pod}: {condition.get('message')}")
        return self.runs(pod) or NO_ROOM in condition.get("message", "")

    def why(self, pod: PodName) -> str:
        """Everything that its conditions complain about."""
        return "; ".join(one["message"] for one in self._conditions(pod) if one.get("message"))

    def find_claim(self, pod: PodName) -> Json | None:
        """Its first claim, None while that was not made."""
        for entry in self._status(pod).get("resourceClaimStatuses", []):
            return self._cluster.get(RESOURCE_CLAIMS, entry["resourceClaimName"], pod.namespace)
        return None

    def find_device(self, pod: PodName) -> str | None:
        """The device that its first claim was given."""
        claim = self.find_claim(pod)
        if claim is None or "allocation" not in claim["status"]:
            return None
        return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])

    def holding(self, pod: PodName) -> Holding:
        """What a running pod holds. StateError: it runs without a record."""
        claim = self.find_claim(pod)
        record = self._node.plugin.node.records.read(claim["metadata"]["uid"]) if claim else None
        if record is None:
            raise StateError(f"pod {pod} runs, but its claim has no record")
        device = record.devices[0]
        return Holding(
            pod=pod.name,
            profile=device.current.profile if device.current else WHOLE,
            device=device.device,
            mig_uuid=device.current.mig_uuid if device.current else None,
        )

    def _status(self, pod: PodName) -> Json:
        """Its status; empty where it is gone."""
        try:
            return dict(self._cluster.get(PODS, pod.name, pod.namespace)["status"])
        except ApiNotFound:
            return {}

    def _conditions(self, pod: PodName) -> list[Json]:
        return list(self._status(pod).get("conditions", []))
