"""Manifests of pods and claims, and one test's namespace with the waiting that tests need.

The render functions are pure. Waits poll the API with a deadline and fail with the last thing that was seen.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial

from e2e.harness import images
from e2e.harness.cluster import SERVICE_ACCOUNTS, Cluster
from e2e.harness.processes import wait_until
from tesela.core.errors import ApiNotFound
from tesela.edge.kube.port import NAMESPACES, PODS, RESOURCE_CLAIMS, Json, Resource

EVENTS = Resource("", "v1", "events", "Event", True)
SCHEDULING_TIMEOUT_S = 30.0
LIST_DEVICE_NODES = (
    "cd /dev && ls -d nvidia* | grep -v caps$; ls -d nvidia-caps/* 2>/dev/null; true"  # of NVIDIA's, for `exec`
)
RUNNING_TIMEOUT_S = 60.0
SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.2; done"  # ends at once when asked to


def render_profile_selector(profile: str) -> str:
    """A CEL expression for one MIG profile."""
    return f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'


def render_request(
    name: str,
    *,
    device_class: str = "mig.nvidia.com",
    profile: str | None = None,
    selector: str | None = None,
    count: int | None = None,
    all_devices: bool = False,
    admin_access: bool = False,
) -> Json:
    """A request for exactly these devices."""
    exactly: Json = {"deviceClassName": device_class}
    expressions = [selector] if selector else []
    if profile:
        expressions.append(render_profile_selector(profile))
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    if count:
        exactly["count"] = count
    if all_devices:
        exactly["allocationMode"] = "All"
    if admin_access:
        exactly["adminAccess"] = True
    return {"name": name, "exactly": exactly}


def render_first_available(name: str, *profiles: str, device_class: str = "mig.nvidia.com") -> Json:
    """A prioritized list with one subrequest per profile, named after it without dots."""
    alternatives = [
        {
            "name": "p" + profile.replace(".", "").replace("+", ""),
            "deviceClassName": device_class,
            "selectors": [{"cel": {"expression": render_profile_selector(profile)}}],
        }
        for profile in profiles
    ]
    return {"name": name, "firstAvailable": alternatives}


def render_claim_spec(
    requests: Sequence[Json], *, same: Sequence[str] = (), config: Sequence[Json] = (), over: Sequence[str] = ()
) -> Json:
    """A claim's spec; `same`: attributes that all devices of the requests `over` (default: all) share."""
    devices: Json = {"requests": list(requests)}
    if same:
        devices["constraints"] = [
            {"matchAttribute": name, **({"requests": list(over)} if over else {})} for name in same
        ]
    if config:
        devices["config"] = list(config)
    return {"devices": devices}


def render_opaque(kind: str, *, requests: Sequence[str] = (), api_version: str = "resource.nvidia.com/v1beta1",
                  **fields: object) -> Json:  # fmt: skip
    """A claim's opaque configuration for our driver."""
    parameters = {"apiVersion": api_version, "kind": kind, **fields}
    entry: Json = {"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    if requests:
        entry["requests"] = list(requests)
    return entry


def render_template(name: str, spec: Json) -> Json:
    """A ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }


def render_claim(name: str, spec: Json) -> Json:
    """A ResourceClaim that stands by itself."""
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def render_container(name: str, *, claims: Sequence[str | Json] = (), script: str = SLEEP) -> Json:
    """A busybox container; `claims` are names of the pod's claims, or {name, request}."""
    resources: Json = {"requests": {"cpu": "5m", "memory": "8Mi"}}
    if claims:
        resources["claims"] = [{"name": claim} if isinstance(claim, str) else claim for claim in claims]
    return {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": resources,
    }


def render_pod(
    name: str,
    *,
    templates: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
    containers: Sequence[Json] | None = None,
    init_containers: Sequence[Json] = (),
    script: str = SLEEP,
) -> Json:
    """A pod; `templates` and `claims` map the pod's names for claims to templates or claims that exist.

    Without `containers` it has one, `main`, which uses all of them.
    """
    named = {**(templates or {}), **(claims or {})}
    spec: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "automountServiceAccountToken": False,
        "dnsPolicy": "Default",
        "containers": list(containers or [render_container("main", claims=tuple(named), script=script)]),
    }
    if init_containers:
        spec["initContainers"] = list(init_containers)
    if named:
        spec["resourceClaims"] = [
            *({"name": key, "resourceClaimTemplateName": value} for key, value in (templates or {}).items()),
            *({"name": key, "resourceClaimName": value} for key, value in (claims or {}).items()),
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def fit_to_this_machine(manifest: Json) -> Json:
    """The manifest with an image that is here, and with less CPU and memory; everything else as shipped."""
    if manifest["kind"] == "Pod":
        (container,) = manifest["spec"]["containers"]
        container.update(image=images.BUSYBOX, imagePullPolicy="Never", command=["sh", "-c", SLEEP])
        for side in ("requests", "limits"):
            container["resources"][side] = {"cpu": "100m", "memory": "64Mi"}
    return manifest


class Namespace:
    """One test's namespace on the cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.kube = cluster.kube
        self.name = name

    def create(self, labels: Mapping[str, str] | None = None) -> None:
        """Creates the namespace; pods may be created when this returns."""
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": dict(labels or {})}}
        )
        wait_until(  # the API server itself waits for it no longer than a second or two when a pod is created
            f"namespace {self.name} has its ServiceAccount",
            lambda: self.kube.list(SERVICE_ACCOUNTS, self.name).items,
            timeout_s=60,
            every_s=0.02,
        )

    def apply(self, *objects: Json) -> None:
        """Creates objects here, in the order given."""
        resources = {"Pod": PODS, "ResourceClaim": RESOURCE_CLAIMS}
        for obj in objects:
            placed = {**obj, "metadata": {**obj["metadata"], "namespace": self.name}}
            kind = obj["kind"]
            plural = kind.lower() + "s"
            group, _, version = obj["apiVersion"].rpartition("/")
            self.kube.create(resources.get(kind) or Resource(group, version, plural, kind, True), placed)

    def pod(self, name: str) -> Json:
        """The pod. ApiNotFound."""
        return self.kube.get(PODS, name, self.name)

    def claim_of(self, pod: str, claim: str) -> Json:
        """The ResourceClaim behind a pod's claim."""
        for status in self.pod(pod)["status"].get("resourceClaimStatuses", []):
            if status["name"] == claim:
                return self.kube.get(RESOURCE_CLAIMS, status["resourceClaimName"], self.name)
        entry = next(entry for entry in self.pod(pod)["spec"]["resourceClaims"] if entry["name"] == claim)
        return self.kube.get(RESOURCE_CLAIMS, entry["resourceClaimName"], self.name)

    def devices_of(self, pod: str, claim: str) -> list[str]:
        """Names of the devices allocated for a pod's claim."""
        results = self.claim_of(pod, claim)["status"]["allocation"]["devices"]["results"]
        return [result["device"] for result in results]

    def wait_running(self, *names: str, timeout_s: float = RUNNING_TIMEOUT_S) -> None:
        """Until every container of these pods has started."""
        for name in names:
            wait_until(f"pod {name} runs", partial(self._phase, name, "Running"), timeout_s=timeout_s)

    def wait_succeeded(self, *names: str, timeout_s: float = RUNNING_TIMEOUT_S) -> None:
        """Until these pods have run to their end without an error."""
        for name in names:
            wait_until(f"pod {name} succeeds", partial(self._phase, name, "Succeeded"), timeout_s=timeout_s)

    def wait_unschedulable(self, name: str, containing: str = "") -> None:
        """Until the scheduler says that the pod fits nowhere, with this text."""

        def is_said() -> bool:
            said = self._unschedulable(name)
            return bool(said) and containing in said

        wait_until(f"pod {name} is unschedulable: {containing!r}", is_said, timeout_s=SCHEDULING_TIMEOUT_S)

    def wait_event(self, pod: str, reason: str, containing: str = "", *, timeout_s: float = 60) -> str:
        """Until the pod has an event with this reason and text; the message."""

        def messages() -> list[str]:
            events = [event for event in self.list_events() if event["involvedObject"]["name"] == pod]
            return [e["message"] for e in events if e["reason"] == reason and containing in e["message"]]

        wait_until(f"event {reason} on pod {pod} with {containing!r}", messages, timeout_s=timeout_s)
        return messages()[-1]

    def list_events(self) -> list[Json]:
        """Every event here."""
        return list(self.kube.list(EVENTS, self.name).items)

    def wait_restarted(self, name: str) -> None:
        """Until the first container of a pod has been restarted."""

        def restarts() -> int:
            return int(self.pod(name)["status"]["containerStatuses"][0]["restartCount"])

        wait_until(f"pod {name} has been restarted", restarts, timeout_s=RUNNING_TIMEOUT_S)

    def hurry(self, name: str) -> None:
        """Has the kubelet try a pod again now and not after its pause: it looks at once at a pod that changed."""
        self.cluster.kubectl("-n", self.name, "label", "pod", name, f"hurry=n{time.monotonic_ns()}", "--overwrite")

    def delete(self, *names: str, grace_s: int | None = None) -> None:
        """Asks for the end of pods; `grace_s` 0 forces it without the kubelet."""
        for name in names:
            with contextlib.suppress(ApiNotFound):
                self.kube.delete(PODS, name, self.name, grace_period_s=grace_s)

    def delete_in_vain(self, *names: str) -> None:
        """Asks for the end of pods, and waits until the kubelet says of each that it cannot give its claims back.

        Why it cannot depends on whether it has noticed yet that the driver is away.
        """
        kubelet = self.cluster.processes["kubelet"]
        before = kubelet.log.stat().st_size
        self.delete(*names)

        def list_failed() -> set[str]:
            said = [line for line in kubelet.read_since(before) if "unprepare dynamic resources" in line]
            return {name for name in names if any(f'pod="{self.name}/{name}"' in line for line in said)}

        wait_until(
            f"the kubelet has failed to end {', '.join(names)}", lambda: list_failed() == set(names), timeout_s=30
        )

    def wait_gone(self, *names: str, timeout_s: float = RUNNING_TIMEOUT_S) -> None:
        """Until these pods are gone from the API."""
        for name in names:
            wait_until(f"pod {name} is gone", partial(self._is_gone, name), timeout_s=timeout_s)

    def end(self, *names: str) -> None:
        """Deletes pods and waits until they are gone, and their claims free: a controller does that a moment later."""
        self.delete(*names)
        self.wait_gone(*names)
        wait_until(
            f"no claim is reserved for {', '.join(names)}",
            lambda: not self._list_reserved(names),
            timeout_s=RUNNING_TIMEOUT_S,
        )

    def exec(self, pod: str, script: str, *, container: str = "main") -> str:
        """What a shell script prints in a container."""
        return self.cluster.kubectl("-n", self.name, "exec", pod, "-c", container, "--", "sh", "-c", script)

    def get_container_id(self, pod: str) -> str:
        """The runtime's name of a pod's first container."""
        return str(self.pod(pod)["status"]["containerStatuses"][0]["containerID"]).removeprefix("containerd://")

    def logs(self, pod: str, *, container: str = "main") -> str:
        """What a container printed."""
        return self.cluster.kubectl("-n", self.name, "logs", pod, "-c", container)

    def environment(self, pod: str, *, container: str = "main") -> dict[str, str]:
        """The environment that a container was started with."""
        lines = self.exec(pod, "env", container=container).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def clear(self) -> None:
        """Ends every pod, then every claim, and waits for both."""
        names = [pod["metadata"]["name"] for pod in self.kube.list(PODS, self.name).items]
        self.end(*names)
        for claim in self.kube.list(RESOURCE_CLAIMS, self.name).items:
            with contextlib.suppress(ApiNotFound):
                self.kube.delete(RESOURCE_CLAIMS, claim["metadata"]["name"], self.name)
        wait_until(
            f"the claims of namespace {self.name} are gone",
            lambda: not self.kube.list(RESOURCE_CLAIMS, self.name).items,
            timeout_s=60,
        )

    def remove(self) -> None:
        """Asks for the namespace's end."""
        self.kube.delete(NAMESPACES, self.name)

    def _phase(self, name: str, phase: str) -> bool:
        pod = self.pod(name)
        now = pod["status"].get("phase")
        if now in {"Failed", "Succeeded"} and now != phase:
            raise AssertionError(f"pod {name} is {now}, not {phase}: {json.dumps(pod['status'])[:2000]}")
        return bool(now == phase)

    def _unschedulable(self, name: str) -> str:
        for condition in self.pod(name)["status"].get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message", ""))
        return ""

    def _list_reserved(self, pods: Sequence[str]) -> list[str]:
        """Claims that are reserved for one of these pods. With the last reservation the allocation goes."""
        claims = self.kube.list(RESOURCE_CLAIMS, self.name).items
        return [
            claim["metadata"]["name"]
            for claim in claims
            if any(one["name"] in pods for one in claim.get("status", {}).get("reservedFor", []))
        ]

    def _is_gone(self, name: str) -> bool:
        try:
            return not self.pod(name)
        except ApiNotFound:
            return True
