"""The API server and scheduler of one release of Kubernetes, and on them a node whose kubelet the test plays.

etcd, kubectl and all else are the cluster's own. No kubelet runs: what it would call is called over the driver's own
sockets.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.control_plane import ControlPlane
from bench.node import BenchNode
from e2e.harness import build, components
from e2e.harness.build import HarnessError
from e2e.harness.cluster import NODE, SERVICE_ACCOUNTS
from e2e.harness.components import Settings
from e2e.harness.driver import DRIVER
from e2e.harness.processes import Process
from polling import until
from tesela.core.errors import ApiError, ApiNotFound
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.kube.port import NODES, PODS, RESOURCE_CLAIMS, Json
from tesela.edge.simulator.admin import SimulatorAdmin

GPUS = "h100-80gb*3"
NAMESPACE = "default"
PATIENCE_S = 12.0
"""A pod that can be scheduled is within two seconds; the rest is for a busy machine."""
DOUBT_S = 4.0
"""So long a pod is watched that must not be scheduled; the scheduler decides on it at once."""
_RELEASED = ("kube-apiserver", "kube-scheduler")


def join_binaries(minor: str, folder: Path) -> Path:
    """`folder` with the cluster's programs, and those of `minor` where it pins them."""
    cluster = build.build_cluster()
    released = build.build_control_plane(minor) if minor in build.list_control_planes() else cluster
    folder.mkdir()
    for program in cluster.iterdir():
        source = released if program.name in _RELEASED else cluster
        (folder / program.name).symlink_to(source / program.name)
    return folder


class VersionPlane(ControlPlane):
    """`up` takes about ten seconds; the calling thread is in its network until `down`.

    `served` are API versions that the server is told to serve besides, as a gate may need one.
    """

    def __init__(self, binaries: Path, served: Sequence[str] = ()) -> None:
        super().__init__(binaries)
        self._served = served

    def start(self, name: str, render: Callable[[Settings], list[str]]) -> Process:
        """Starts a component, the API server with what it is to serve."""
        served = [f"--runtime-config={one}=true" for one in self._served if name == "apiserver"]
        return super().start(name, lambda settings: [*render(settings), *served])

    def _up(self, feature_gates: dict[str, bool]) -> None:
        super()._up(feature_gates)
        for namespace in (NAMESPACE, "tesela"):
            self._create_account(namespace)
        self._offer_node()
        self.start("scheduler", components.render_scheduler)

    def _create_account(self, namespace: str) -> None:
        """Pods need one; where a controller manager runs, it makes it."""
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}
        self.kube.create(SERVICE_ACCOUNTS, body)

    def _offer_node(self) -> None:
        """What a kubelet says of its node. Pods tolerate that nobody takes the taint off that says it is not ready."""
        node = self.kube.get(NODES, NODE)
        room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played"}
        node["status"] = {"capacity": room, "allocatable": room, "conditions": [condition]}
        self.kube.replace_status(NODES, node)


class Scene:
    """A driver that has published on a plane. What a feature makes is removed by `clear`, before the next one."""

    def __init__(self, plane: VersionPlane) -> None:
        self.plane = plane
        self.node = BenchNode(plane, plane.create_identity("driver"), GPUS)
        self.node.start_driver()
        self.client = self.node.connect()
        self._pods: list[str] = []
        self._prepared: list[ClaimRef] = []

    def create_claim(self, name: str, *requests: Json, config: Sequence[Json] = ()) -> None:
        """A claim with these requests."""
        devices: Json = {"requests": list(requests), **({"config": list(config)} if config else {})}
        self.plane.kube.create(
            RESOURCE_CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"devices": devices},
            },
        )

    def schedule(self, name: str, *claims: str, limits: Json | None = None, patience_s: float = PATIENCE_S) -> str:
        """A pod with these claims, until it has a node (the empty text) or patience ends: the scheduler's last word."""
        resources: Json = {"claims": [{"name": claim} for claim in claims]}
        if limits:
            resources = {"limits": limits, "requests": limits}
        container = {"name": "main", "image": "none", "resources": resources}
        spec: Json = {
            "containers": [container],
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
        }
        if claims:
            spec["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        self._pods.append(name)
        metadata = {"name": name, "namespace": NAMESPACE}
        self.plane.kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        said = ""

        def has_node() -> bool:
            nonlocal said
            pod = self.plane.kube.get(PODS, name, NAMESPACE)
            conditions = pod.get("status", {}).get("conditions", [])
            said = next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
            return bool(pod["spec"].get("nodeName"))

        return "" if self.wait(has_node, patience_s) else said or "the scheduler said nothing"

    def prepare(self, name: str) -> str:
        """What the kubelet does for a claim of a pod that was scheduled: the refusal, or the empty text."""
        metadata = self.get_claim(name)["metadata"]
        ref = ClaimRef(namespace=NAMESPACE, name=name, uid=metadata["uid"])
        self._prepared.append(ref)
        answer = self.client.prepare([ref])[ref.uid]
        return answer.message if isinstance(answer, Refusal) else ""

    def get_claim(self, name: str) -> Json:
        """The claim as the API has it."""
        return self.plane.kube.get(RESOURCE_CLAIMS, name, NAMESPACE)

    def list_devices_of(self, name: str) -> list[str]:
        """The devices that a claim was given."""
        allocation = self.get_claim(name).get("status", {}).get("allocation", {})
        return [one["device"] for one in allocation.get("devices", {}).get("results", [])]

    def find_claims_of(self, pod: str) -> list[str]:
        """The claims that the scheduler made for a pod's extended resources."""
        claims = self.plane.kube.list(RESOURCE_CLAIMS, NAMESPACE).items
        owners = {one["metadata"]["name"]: one["metadata"].get("ownerReferences", []) for one in claims}
        return [name for name, owned in owners.items() if any(owner["name"] == pod for owner in owned)]

    def find_complaint(self) -> str:
        """The last that the driver's log has to say against anything."""
        lines = self.node.driver.tail(200, matching="WARNING|ERROR") if self.node.driver is not None else ""
        return lines.strip().splitlines()[-1] if lines.strip() else "the driver complains of nothing"

    def ail(self, gpu: int) -> None:
        """An Xid after which a GPU is given to nobody."""
        admin = SimulatorAdmin(self.node.simulator.socket)
        try:
            admin.send({"op": "xid", "gpu": str(gpu), "xid": 48})
        finally:
            admin.close()

    def try_apply(self, *objects: Json, kubeconfig: Path | None = None) -> str:
        """What the API server says against these objects, as administrator or somebody else; empty: nothing."""
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": copy.deepcopy(list(objects))})
        try:
            self.plane.kubectl("create", "-f", "-", stdin=body, kubeconfig=kubeconfig)
        except HarnessError as error:
            return str(error)
        return ""

    def wait(self, happens: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
        """Whether it does within that time."""
        return until(happens, patience_s, every_s=0.1)

    def clear(self) -> None:
        """Ends pods, gives their claims back and deletes all claims, as kubelet and controllers would."""
        kube = self.plane.kube
        for name in self._pods:
            kube.delete(PODS, name, NAMESPACE, grace_period_s=0)
        if self._prepared:
            refused = [one for one in self.client.unprepare(self._prepared).values() if one]
            if refused:
                raise HarnessError(f"claims are not given back: {refused}")
        self._pods, self._prepared = [], []
        for one in kube.list(RESOURCE_CLAIMS, NAMESPACE).items:
            self._delete_claim(one["metadata"]["name"])

    def _delete_claim(self, name: str) -> None:
        """The driver may write the claim's status meanwhile, so it is read and tried again."""
        kube, end = self.plane.kube, time.monotonic() + PATIENCE_S
        while True:
            try:
                claim = kube.get(RESOURCE_CLAIMS, name, NAMESPACE)
                if claim["metadata"].pop("finalizers", None):
                    kube.replace(RESOURCE_CLAIMS, claim)
                kube.delete(RESOURCE_CLAIMS, name, NAMESPACE)
            except ApiNotFound:
                return
            except ApiError:
                if time.monotonic() > end:
                    raise

    def close(self) -> None:
        """Ends the driver and its GPUs."""
        self.client.close()
        self.node.close()


def is_of_driver(entry: Json) -> bool:
    """Whether an entry of status.devices is this driver's."""
    return bool(entry.get("driver") == DRIVER)
