"""Hand-written worlds on a real API server, decided by the real kube-scheduler.

All worlds stand side by side in one cluster: each gets a node of its own, and its pools, classes and claims get names
of their own, so that none sees another. `place` renames; `RealScheduler` creates, reads the verdicts and cleans up.

A pod is tried as soon as the scheduler sees it, and a verdict counts only if the scheduler saw its world by then.
Watches deliver each kind of object in order: a last world, made after all others, whose pod finds its device, proves
that whatever was made before is known. Only then the other pods are created.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from e2e.harness import images
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Json, Kube, Resource

VERDICT_TIMEOUT_S = 60.0
_IN_FILTER = 'running "DynamicResources" filter plugin: '
_REASON = re.compile(r" nodes are available: (?:.*, )?1 (?P<reason>[^,]+?)[,.] ")
_NOT_OURS = {"allocationTimestamp"}  # when, not what
LAST_WORLD: dict[str, Any] = {
    "name": "the last one made",
    "node": {"metadata": {"name": "node-a", "labels": {}}},
    "classes": [{"metadata": {"name": "any"}, "spec": {}}],
    "slices": [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "last"},
            "spec": {
                "driver": "last.example.com",
                "nodeName": "node-a",
                "pool": {"name": "last", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "last"}],
            },
        }
    ],
    "allocatedClaims": [],
    "claims": [
        {
            "metadata": {"name": "claim-0", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}},
        }
    ],
}


def place(world: dict[str, Any], prefix: str, namespace: str) -> dict[str, Any]:
    """The world with `prefix` before its nodes, zones, pools, classes, slices and claims, its claims in `namespace`."""
    placed: dict[str, Any] = {**world}
    for part in ("node", "classes", "slices", "allocatedClaims", "claims"):
        placed[part] = _renamed(copy.deepcopy(world[part]), prefix, namespace)
    return placed


def _renamed(value: Any, prefix: str, namespace: str) -> Any:
    if isinstance(value, list):
        return [_renamed(item, prefix, namespace) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {key: _renamed(item, prefix, namespace) for key, item in value.items()}
    for key, item in renamed.items():
        match key, item:
            case ("nodeName" | "deviceClassName" | "pool", str()):
                renamed[key] = prefix + item
            case ("pool" | "metadata", {"name": name}):
                item["name"] = prefix + name
            case ("values", list()):  # of a node selector: zones and node names
                renamed[key] = [prefix + text for text in item]
            case ("labels", dict()):
                renamed[key] = {label: prefix + text for label, text in item.items()}
            case ("namespace", str()):
                renamed[key] = namespace
            case _:
                pass
    return renamed


class RealScheduler:
    """Worlds that were placed, each with a pod that uses all its claims; `close` removes everything but the pods."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self._made: list[tuple[Resource, str]] = []

    def decide(self, worlds: Iterable[dict[str, Any]]) -> None:
        """Creates the worlds, then lets the scheduler decide all of them."""
        worlds = list(worlds)
        last = place(LAST_WORLD, "last-", self.namespace)
        for world in (*worlds, last):
            self._create_world(world)
        self._create_pod(last)
        wait_until(
            "the scheduler knows every world",
            lambda: self.read_verdict(last).get("allocations"),
            timeout_s=VERDICT_TIMEOUT_S,
            every_s=0.02,
        )
        for world in worlds:
            self._create_pod(world)

    def read_verdict(self, world: dict[str, Any]) -> dict[str, Any]:
        """What the scheduler decided, in the shape of the genuine allocator's verdicts; `pending` while it has not."""
        pod = self.kube.get(PODS, _pod_name(world), self.namespace)
        condition = next((c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"), {})
        match condition.get("status"), condition.get("reason"):
            case "True", _:
                return {"allocations": [self._read_allocation(claim) for claim in world["claims"]]}
            case "False", "Unschedulable":
                return _parse_unschedulable(condition["message"])
            case "False", "SchedulerError":
                return {"error": condition["message"].removeprefix(_IN_FILTER)}
            case _:
                return {"pending": str(condition)}

    def wait_verdict(self, world: dict[str, Any]) -> dict[str, Any]:
        """The verdict, once there is one."""
        wait_until(
            f"the scheduler decides: {world['name']}",
            lambda: "pending" not in self.read_verdict(world),
            timeout_s=VERDICT_TIMEOUT_S,
        )
        return self.read_verdict(world)

    def close(self) -> None:
        """Removes what it made, the last first; pods and claims are the namespace's to clear."""
        while self._made:
            self.kube.delete(*self._made.pop())

    def _create_world(self, world: dict[str, Any]) -> None:
        room = {"cpu": "8", "memory": "16Gi", "pods": "100"}
        status = {"capacity": room, "allocatable": room}
        self._create(NODES, {**world["node"], "apiVersion": "v1", "kind": "Node", "status": status})
        for device_class in world["classes"]:
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
            self._create(DEVICE_CLASSES, {**kind, **device_class})
        for claim in (*world["allocatedClaims"], *world["claims"]):
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
            metadata = {key: value for key, value in claim["metadata"].items() if key != "uid"}
            made = self.kube.create(RESOURCE_CLAIMS, {**kind, "metadata": metadata, "spec": claim["spec"]})
            if "status" in claim:
                self.kube.replace_status(RESOURCE_CLAIMS, {**made, "status": claim["status"]})
        for piece in world["slices"]:
            self._create(RESOURCE_SLICES, piece)

    def _create(self, resource: Resource, obj: Json) -> None:
        self.kube.create(resource, obj)
        self._made.append((resource, obj["metadata"]["name"]))

    def _create_pod(self, world: dict[str, Any]) -> None:
        node = {
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": [world["node"]["metadata"]["name"]]}]
        }
        names = [claim["metadata"]["name"] for claim in world["claims"]]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _pod_name(world), "namespace": self.namespace},
            "spec": {
                "containers": [{"name": "main", "image": images.BUSYBOX, "imagePullPolicy": "Never"}],
                "resourceClaims": [{"name": f"c{n}", "resourceClaimName": name} for n, name in enumerate(names)],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node]},
                    }
                },
                # Nobody reports for the node, so it counts as not ready; and nobody ends the pod on it.
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
            },
        }
        self.kube.create(PODS, pod)

    def _read_allocation(self, claim: dict[str, Any]) -> dict[str, Any]:
        status = self.kube.get(RESOURCE_CLAIMS, claim["metadata"]["name"], self.namespace)["status"]
        return {key: value for key, value in status["allocation"].items() if key not in _NOT_OURS}


def _pod_name(world: dict[str, Any]) -> str:
    return f"{world['node']['metadata']['name']}-pod"


def _parse_unschedulable(message: str) -> dict[str, Any]:
    """Empty where the claims cannot be allocated; else what kept the pod off its node.

    The message counts nodes by reason, as in `0/9 nodes are available: 1 cannot allocate all claims, 8 node(s) ...`;
    one node is the world's, the many are those that the pod's affinity leaves out.
    """
    match = _REASON.search(message)
    reason = match["reason"] if match else message
    return {} if reason == "cannot allocate all claims" else {"failedOnNode": reason}
