"""The objects that the demo applies: the bridge manifest with a model's own profile names, and jobs beside it.

`render_bridge` with the A100's names equals `deviceclasses/examples/bridge.yaml` and `deviceclasses/enterprise.yaml`
object by object; a test holds it to that, so that an installed package needs no file of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tesela.core.model import DRIVER_NAME
from tesela.edge.kube.port import (
    DEVICE_CLASSES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    Json,
    Resource,
)
from tesela.edge.simulator.models import GpuModel

Manifest = tuple[Resource, Json]

BRIDGE_NAMESPACE: Final = "spatial-net"
BRIDGE_POD: Final = "omniverse-local-bridge"
BRIDGE_PROFILES: Final = ("1g.5gb", "3g.20gb")
"""The names in the shipped manifest: those of an A100-40GB."""
JOB_NAMESPACE: Final = "batch"
WHOLE_GPU: Final = ""
"""What the attribute `profile` of a whole GPU is."""
_CLASS: Final = "enterprise-nvidia-gpu"
_TEMPLATE: Final = "omniverse-gpu-template"
_REQUEST: Final = "primary-rendering-core"
_CLAIM: Final = "gpu"
_PLAIN_PROFILE: Final = re.compile(r"[1-9]g\.[0-9]+gb")
_BIG_COMPUTE_SLICES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfiles:
    """What one model calls the bridge's two profiles. `big` has three compute slices, or the most below that."""

    model: str
    small: str
    big: str


def plan_bridge_profiles(models: Iterable[GpuModel]) -> tuple[ModelProfiles, ...]:
    """The 1g and the 3g of each model, once per model."""
    found = {}
    for model in models:
        plain = [p for p in model.profiles if _PLAIN_PROFILE.fullmatch(p.name)]
        sized = sorted((p.compute_slices, p.placements[0].size, p.name) for p in plain)
        most = max(compute for compute, _, _ in sized if compute <= _BIG_COMPUTE_SLICES)
        big = next(name for compute, _, name in sized if compute == most)
        found[model.model] = ModelProfiles(model=model.model, small=sized[0][2], big=big)
    return tuple(found.values())


def plan_job_profiles(models: Iterable[GpuModel]) -> tuple[str, ...]:
    """What jobs ask for: every plain profile of every model, and whole GPUs where the MIG mode changes by itself."""
    names: dict[str, int] = {}
    for model in models:
        names |= {p.name: p.compute_slices for p in model.profiles if _PLAIN_PROFILE.fullmatch(p.name)}
        if model.resetless_mig:
            names[WHOLE_GPU] = 0
    # Middle sizes first: a few claims then show a mixed node, not one GPU taken whole.
    return tuple(sorted(names, key=lambda name: (name == WHOLE_GPU, abs(names[name] - 2), name)))


def render_bridge(profiles: Sequence[str] = BRIDGE_PROFILES) -> tuple[Manifest, ...]:
    """The class, the namespace, the claim template and the pod; it takes the first free of `profiles`."""
    template = {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATES.kind,
        "metadata": {"name": _TEMPLATE, "namespace": BRIDGE_NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [_render_request(_REQUEST, profiles)]}}},
    }
    return (
        (DEVICE_CLASSES, _render_class()),
        (NAMESPACES, _render_namespace(BRIDGE_NAMESPACE)),
        (RESOURCE_CLAIM_TEMPLATES, template),
        (PODS, _render_bridge_pod()),
    )


def render_job(name: str, profile: str) -> tuple[Manifest, Manifest]:
    """A claim template for one profile ("" is a whole GPU) and the pod that uses it."""
    metadata = {"name": name, "namespace": JOB_NAMESPACE}
    template = {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATES.kind,
        "metadata": metadata,
        "spec": {"spec": {"devices": {"requests": [_render_request("gpu", [profile])]}}},
    }
    container = {
        "name": "job",
        "image": "registry.example.com/batch/job:1.0.0",
        "resources": {"claims": [{"name": _CLAIM}]},
    }
    pod = {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "resourceClaims": [{"name": _CLAIM, "resourceClaimTemplateName": name}],
        },
    }
    return (RESOURCE_CLAIM_TEMPLATES, template), (PODS, pod)


def render_job_namespace() -> Manifest:
    """The namespace of the jobs."""
    return NAMESPACES, _render_namespace(JOB_NAMESPACE)


def _render_namespace(name: str) -> Json:
    return {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind, "metadata": {"name": name}}


def _render_class() -> Json:
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {"name": _CLASS, "labels": {"app.kubernetes.io/part-of": "tesela"}},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER_NAME}"'}}]},
    }


def _render_request(name: str, profiles: Sequence[str]) -> Json:
    expression = " || ".join(f'device.attributes["{DRIVER_NAME}"].profile == "{profile}"' for profile in profiles)
    return {
        "name": name,
        "exactly": {"deviceClassName": _CLASS, "selectors": [{"cel": {"expression": expression}}]},
    }


def _render_bridge_pod() -> Json:
    resources = {"cpu": "4", "memory": "16Gi"}
    container = {
        "name": "bridge",
        "image": "registry.example.com/spatial-net/omniverse-local-bridge:1.0.0",
        "ports": [
            {"name": "websocket-sync", "containerPort": 8080},
            {"name": "grpc-telemetry", "containerPort": 9090},
        ],
        "resizePolicy": [{"resourceName": name, "restartPolicy": "NotRequired"} for name in resources],
        "resources": {"requests": dict(resources), "limits": dict(resources), "claims": [{"name": _CLAIM}]},
    }
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            "name": BRIDGE_POD,
            "namespace": BRIDGE_NAMESPACE,
            "labels": {"app": "simulation-pipeline"},
        },
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": _CLAIM, "resourceClaimTemplateName": _TEMPLATE}],
        },
    }
