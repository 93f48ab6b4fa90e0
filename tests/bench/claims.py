"""Claims that are allocated already, as the scheduler would leave them, made before any time is taken."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.harness.cluster import NODE
from tesela.core.model import DRIVER_NAME, ClaimRef
from tesela.edge.kube.port import RESOURCE_CLAIMS, Json, Kube

REQUEST = "gpu"
NAMESPACE = "default"


def list_whole_gpus(devices: Sequence[Json]) -> list[str]:
    """Names of the whole GPUs, in published order."""
    return [device["name"] for device in devices if _get(device, "type") == "gpu"]


def list_small_partitions(devices: Sequence[Json]) -> list[str]:
    """Names of the plain one-slice partitions, GPU by GPU in turn: neighbours in the list are on different GPUs."""
    by_gpu: dict[str, list[str]] = {}
    for device in devices:
        profile = _get(device, "profile")
        if profile.startswith("1g.") and "+" not in profile:
            by_gpu.setdefault(f"{_get(device, 'parentUUID')} {profile}", []).append(device["name"])
    # Of the one-slice profiles the one with most placements, as 1g.10gb and not 1g.20gb on an H100.
    most = max(len(names) for names in by_gpu.values())
    rows = [names for names in by_gpu.values() if len(names) == most]
    return [names[position] for position in range(most) for names in rows]


def create_claims(kube: Kube, prefix: str, devices: Sequence[str], count: int) -> list[ClaimRef]:
    """`count` claims called after `prefix`, each allocated one of `devices` in turn."""
    return [_create_claim(kube, f"{prefix}-{number}", devices[number % len(devices)]) for number in range(count)]


def _create_claim(kube: Kube, name: str, device: str) -> ClaimRef:
    claim: Json = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
        },
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": {"deviceClassName": DRIVER_NAME}}]}},
    }
    kept = kube.create(RESOURCE_CLAIMS, claim)
    result = {"request": REQUEST, "driver": DRIVER_NAME, "pool": NODE, "device": device}
    uid = kept["metadata"]["uid"]
    kept["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": uid}],
    }
    kube.replace_status(RESOURCE_CLAIMS, kept)
    return ClaimRef(namespace=NAMESPACE, name=name, uid=uid)


def _get(device: Json, attribute: str) -> str:
    return str(device["attributes"].get(attribute, {}).get("string", ""))
