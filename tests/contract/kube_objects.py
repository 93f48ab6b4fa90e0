"""Builders of small, valid API objects for the Kubernetes tests."""

from __future__ import annotations

import uuid

from tesela.edge.kube.port import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Json,
    Resource,
)

DRIVER = "gpu.nvidia.com"
NAMESPACE = "default"
NOWHERE = {"driver": DRIVER, "pool": "no-such-node", "device": "gpu-0"}


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def build(resource: Resource, name: str | None, **fields) -> Json:
    metadata = {"name": name or unique(resource.plural)}
    if resource.namespaced:
        metadata["namespace"] = fields.pop("namespace", NAMESPACE)
    metadata |= fields.pop("metadata", {})
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **fields}


def resource_slice(name: str | None = None, metadata: Json | None = None, **spec) -> Json:
    given = {
        "driver": DRIVER,
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "devices": [device()],
        **spec,
    }
    given = {key: value for key, value in given.items() if value is not None}
    return build(RESOURCE_SLICES, name, metadata=metadata or {}, spec=given)


def device(name: str = "gpu-0", **fields) -> Json:
    return {"name": name, "attributes": {"type": {"string": "gpu"}}, **fields}


def counters(count: int = 1) -> Json:
    return {f"memory-slice-{index}": {"value": "1"} for index in range(count)}


def request(name: str = "gpu", **fields) -> Json:
    return {"name": name, "exactly": {"deviceClassName": DRIVER, **fields}}


def claim(name: str | None = None, requests: list[Json] | None = None, metadata: Json | None = None, **devices) -> Json:
    spec = {"devices": {"requests": [request()] if requests is None else requests, **devices}}
    return build(RESOURCE_CLAIMS, name, metadata=metadata or {}, spec=spec)


def template(name: str | None = None, requests: list[Json] | None = None, **devices) -> Json:
    spec = {"spec": {"devices": {"requests": [request()] if requests is None else requests, **devices}}}
    return build(RESOURCE_CLAIM_TEMPLATES, name, spec=spec)


def device_class(name: str, expression: str = f'device.driver == "{DRIVER}"') -> Json:
    return build(DEVICE_CLASSES, name, spec={"selectors": [{"cel": {"expression": expression}}]})


def taint_rule(name: str | None = None, selector: Json | None = NOWHERE, taint: Json | None = None) -> Json:
    """A DeviceTaintRule, without further ado for a device that no test has."""
    spec = {"taint": taint or {"key": "example.com/test", "effect": "NoSchedule"}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return build(DEVICE_TAINT_RULES, name, spec=spec)


def node(name: str) -> Json:
    return build(NODES, name)


def container(name: str = "main", claims: list[Json] | None = None) -> Json:
    given = {"name": name, "image": "registry.test/image:1", "imagePullPolicy": "Never"}
    return given | ({"resources": {"claims": claims}} if claims else {})


def pod(name: str | None = None, metadata: Json | None = None, **spec) -> Json:
    return build(PODS, name, metadata=metadata or {}, spec={"containers": [container()], **spec})


def allocation(device_name: str = "gpu-0", request_name: str = "gpu", node_name: str = "node-a") -> Json:
    result = {"request": request_name, "driver": DRIVER, "pool": node_name, "device": device_name}
    fields = [{"key": "metadata.name", "operator": "In", "values": [node_name]}]
    return {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }


def reservation(name: str = "consumer") -> Json:
    # not a pod: a cluster's claim controller frees claims of pods that do not exist
    return {"apiGroup": "example.com", "resource": "widgets", "name": name, "uid": f"uid-{name}"}


def changed(obj: Json, **metadata) -> Json:
    return {**obj, "metadata": {**obj["metadata"], **metadata}}


def with_spec(obj: Json, **spec) -> Json:
    return {**obj, "spec": {**obj["spec"], **spec}}


def names(found) -> set[str]:
    return {item["metadata"]["name"] for item in found.items}
