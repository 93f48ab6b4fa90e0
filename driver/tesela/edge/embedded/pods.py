"""Pods, nodes and namespaces as far as devices reach: defaults, references to claims, what an update may change.

Rules: pkg/apis/core/validation of Kubernetes 1.37. Everything else of a pod is kept as it came, unchecked.
"""

from __future__ import annotations

import json

from tesela.edge.embedded.problems import Problems
from tesela.edge.kube.port import Json

POD_DEFAULTS = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
}
GRACE_PERIOD_S = 30
UPDATE_REFUSAL = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)"
)


def default_pod(pod: Json) -> None:
    """Fills in what the API server would; the status starts as Pending whatever came with the pod."""
    spec = pod.setdefault("spec", {})
    for field, value in POD_DEFAULTS.items():
        spec.setdefault(field, value)
    spec.setdefault("securityContext", {})
    for container in (*spec.get("containers", []), *spec.get("initContainers", [])):
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        latest = ":" not in str(container.get("image", "")).rpartition("/")[2]
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, by the cpu and memory of all containers."""
    containers = [*spec.get("containers", []), *spec.get("initContainers", [])]
    sides = [
        {side: container.get("resources", {}).get(side, {}) for side in ("limits", "requests")}
        for container in containers
    ]
    if not any(side["limits"] or side["requests"] for side in sides):
        return "BestEffort"
    for side in sides:
        for name in ("cpu", "memory"):
            limit = side["limits"].get(name)
            if limit is None or side["requests"].get(name, limit) != limit:
                return "Burstable"
    return "Guaranteed"


def check_pod(spec: Json, problems: Problems) -> None:
    """Notes missing containers, images and names, and references to claims that are not there (422)."""
    claims = spec.get("resourceClaims", [])
    names = [claim.get("name") for claim in claims]
    for index, claim in enumerate(claims):
        path = f"spec.resourceClaims[{index}]"
        sources = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(field)]
        if not sources:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            problems.invalid(path, json.dumps(claim), text)
        elif len(sources) > 1:
            text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            problems.invalid(path, json.dumps(claim), text)
        problems.dns_label(f"{path}.name", claim.get("name", ""))
        if claim.get("name") in names[:index]:
            problems.duplicate(f"{path}.name", claim["name"])
    if not spec.get("containers"):
        problems.required("spec.containers")
    seen: set[str] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field, [])):
            path = f"spec.{field}[{index}]"
            problems.dns_label(f"{path}.name", container.get("name", ""))
            if container.get("name") in seen:
                problems.duplicate(f"{path}.name", container["name"])
            seen.add(container.get("name", ""))
            _check_container(container, names, path, problems)


def _check_container(container: Json, names: list[str | None], path: str, problems: Problems) -> None:
    if not container.get("image"):
        problems.required(f"{path}.image")
    for index, claim in enumerate(container.get("resources", {}).get("claims", [])):
        if claim.get("name") not in names:
            known = ", ".join(str(name) for name in names)
            tail = f": {known}" if known else " which is empty"
            text = f"must be one of the names in pod.spec.resourceClaims{tail}"
            problems.found.append(f'{path}.resources.claims[{index}]: Not found: "{claim.get("name")}": {text}')


def check_pod_update(spec: Json, old: Json, problems: Problems) -> None:
    """Notes a change of anything but images, the active deadline and added tolerations."""
    if _frozen_part(spec) != _frozen_part(old):
        problems.forbidden("spec", UPDATE_REFUSAL)
    elif any(toleration not in spec.get("tolerations", []) for toleration in old.get("tolerations", [])):
        problems.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")


def _frozen_part(spec: Json) -> Json:
    part = {key: value for key, value in spec.items() if key not in {"activeDeadlineSeconds", "tolerations"}}
    for field in ("containers", "initContainers"):
        if field in part:
            part[field] = [{key: value for key, value in entry.items() if key != "image"} for entry in part[field]]
    return part
