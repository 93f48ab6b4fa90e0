"""What a workload may read about its devices: the metadata document of KEP-5304, one per claim and request.

Group metadata.resource.k8s.io, kind DeviceMetadata. The file is a stream of JSON documents, one per version, the
newest first, so that a reader takes the first one that it knows. Our own CDI document mounts it (`core/cdi.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tesela.core.model import DRIVER_NAME
from tesela.core.record import ClaimRecord, RecordedDevice

Json: TypeAlias = dict[str, Any]

VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
_FOLDER_IN_CONTAINER: Final = "/var/run/kubernetes.io/dra-device-attributes"
_MAX_ATTRIBUTES: Final = 32
"""DeviceMetadata v1beta1: at most 32 attributes on a device."""


def find_requests(record: ClaimRecord) -> tuple[str, ...]:
    """The base names of the claim's requests, each of which has a metadata file, in the allocation's order."""
    return tuple(dict.fromkeys(device.base_request for device in record.devices))


def render_container_path(record: ClaimRecord, request: str) -> str:
    """Where a container finds the file of base request `request`: by the pod's name for a claim from a template."""
    folder = (
        f"resourceclaimtemplates/{record.pod_claim_name}"
        if record.pod_claim_name
        else f"resourceclaims/{record.claim.name}"
    )
    return f"{_FOLDER_IN_CONTAINER}/{folder}/{request}/{DRIVER_NAME}-metadata.json"


def render_metadata(
    record: ClaimRecord, request: str, attributes: Mapping[str, Mapping[str, Json]], *, generation: int = 1
) -> bytes:
    """The file for base request `request`.

    `attributes` maps device names to attributes as in a ResourceSlice (`{"model": {"string": "..."}}`). What lives is
    known by the record alone and goes over them: `uuid`, `parentUUID` and `profile`. `generation` rises when a device
    of the claim changes under a running workload.
    """
    devices = [device for device in record.devices if device.base_request == request]
    names = dict.fromkeys(device.request for device in devices)
    body: Json = {
        "metadata": {
            "name": record.claim.name,
            "namespace": record.claim.namespace,
            "uid": record.claim.uid,
            "generation": generation,
        },
        "requests": [
            {
                "name": name,
                "devices": [
                    _render_device(device, attributes.get(device.device, {}))
                    for device in devices
                    if device.request == name
                ],
            }
            for name in names
        ],
    }
    if record.pod_claim_name:
        body["podClaimName"] = record.pod_claim_name
    documents = ({"apiVersion": version, "kind": "DeviceMetadata"} | body for version in VERSIONS)
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def _render_device(device: RecordedDevice, attributes: Mapping[str, Json]) -> Json:
    current = device.current
    uuid = current.mig_uuid if current is not None else device.gpu_uuid
    live: dict[str, Json] = {
        "uuid": {"string": uuid or ""},
        "parentUUID": {"string": device.gpu_uuid},
        "profile": {"string": current.profile if current is not None else ""},
    }
    others = {name: value for name, value in attributes.items() if name not in live}
    kept = dict(list(others.items())[: _MAX_ATTRIBUTES - len(live)])
    return {"driver": DRIVER_NAME, "pool": device.pool, "name": device.device, "attributes": live | kept}
