"""One CDI document per claim: what a container runtime adds to a container that was given one of the claim's devices.

Kind and device names are those of NVIDIA's driver, so that what reads them keeps working. What every device needs
(control nodes, the switch that keeps NVIDIA's runtime hook out) stands once on the document and is applied once per
container; what only one device needs stands on that device. Format: the Container Device Interface specification,
version 0.5.0, the lowest that knows device names with a leading digit and `hostPath` of device nodes; 0.6.0 where the
document carries annotations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tesela.core.errors import StateError
from tesela.core.metadata import render_container_path
from tesela.core.record import ClaimRecord, RecordedDevice

Json: TypeAlias = dict[str, Any]

CDI_VERSION: Final = "0.5.0"
CDI_VERSION_WITH_ANNOTATIONS: Final = "0.6.0"
CDI_KIND: Final = "k8s.gpu.nvidia.com/claim"
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device as a container gets it. `host_path` is None where it is the same as `path`.

    Major and minor make the node even where the host has no file for it; `mode` holds the permission bits alone.
    """

    path: str
    major: int
    minor: int
    mode: int
    uid: int = 0
    gid: int = 0
    host_path: str | None = None


def render_cdi_names(record: ClaimRecord) -> tuple[str, ...]:
    """The CDI device name of every result, parallel to `record.devices`: `<claim UID>-<device>`.

    A device that stands in the claim more than once (admin access) gets `.2`, `.3` from its second result on: a
    dot can be in no DRA device name, so no name means two things.
    """
    seen: Counter[str] = Counter()
    names = []
    for device in record.devices:
        seen[device.device] += 1
        name = f"{record.claim.uid}-{device.device}"
        names.append(name if seen[device.device] == 1 else f"{name}.{seen[device.device]}")
    return tuple(names)


def render_cdi_ids(record: ClaimRecord) -> dict[tuple[str, str], tuple[str, ...]]:
    """The qualified CDI ids by (request, device), as `record.render_answer` takes them.

    Where one request holds one device twice, both answer with the first one's id: their edits are equal.
    """
    ids: dict[tuple[str, str], tuple[str, ...]] = {}
    for device, name in zip(record.devices, render_cdi_names(record), strict=True):
        ids.setdefault((device.request, device.device), (f"{CDI_KIND}={name}",))
    return ids


def render_claim_cdi(
    record: ClaimRecord,
    *,
    common_nodes: Sequence[DeviceNode],
    device_nodes: Sequence[Sequence[DeviceNode]],
    metadata_paths: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    driver_edits: Mapping[str, Any] | None = None,
) -> Json:
    """The CDI document of a claim whose partitions live.

    `common_nodes` go to every container of the claim, `device_nodes` (parallel to `record.devices`, none empty) to
    those that were given that device. `metadata_paths` maps base request names to their metadata files on the host;
    a request without one gets no mount. `annotations` stand on the document, for our own use. `driver_edits` are what
    every container gets of the driver's files (`core/driver_files.py`). StateError where a partition has no UUID yet.
    """
    environment = {request: _render_environment(record, request) for request in _base_requests(record)}
    mounted: set[str] = set()
    devices = []
    for device, name, nodes in zip(record.devices, render_cdi_names(record), device_nodes, strict=True):
        if not nodes:
            raise StateError(f"claim {record.claim}: device {device.device} has no device node, so no CDI device")
        edits: Json = {"deviceNodes": [_render_node(node) for node in nodes], "env": environment[device.base_request]}
        if device.base_request in metadata_paths and device.base_request not in mounted:
            # A container is given all devices of a request: the first one carries what must be mounted once.
            mounted.add(device.base_request)
            edits["mounts"] = [_render_mount(record, device.base_request, metadata_paths[device.base_request])]
        devices.append({"name": name, "containerEdits": edits})
    common: Json = dict(driver_edits or {})
    common["env"] = ["NVIDIA_VISIBLE_DEVICES=void", *common.get("env", ())]
    if common_nodes:
        common["deviceNodes"] = [_render_node(node) for node in common_nodes]
    document: Json = {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": devices, "containerEdits": common}
    if annotations:
        document |= {"cdiVersion": CDI_VERSION_WITH_ANNOTATIONS, "annotations": dict(annotations)}
    return document


def get_uuid(record: ClaimRecord, device: RecordedDevice) -> str:
    """What CUDA calls the device: the GPU's UUID, or its current partition's. StateError before the latter exists."""
    if not device.partitions:
        return device.gpu_uuid
    current = device.current
    if current is None or current.mig_uuid is None:
        raise StateError(
            f"claim {record.claim}: device {device.device} has no partition with a UUID on record: prepare it again"
        )
    return current.mig_uuid


def render_variable_name(record: ClaimRecord, request: str, suffix: str) -> str:
    """`TESELA_<CLAIM>_<REQUEST>_<SUFFIX>`; the claim is the pod's name for it where that is known."""
    claim = record.pod_claim_name or record.claim.name
    return _NOT_IN_A_NAME.sub("_", f"TESELA_{claim}_{request}_{suffix}".upper())


def _render_environment(record: ClaimRecord, request: str) -> list[str]:
    """Equal on every device of the request, so that it does not matter which of them a runtime applies last.

    The lists run parallel: a whole GPU has the empty profile, as in its attributes.
    """
    devices = [device for device in record.devices if device.base_request == request]
    uuids = ",".join(get_uuid(record, device) for device in devices)
    profiles = ",".join(device.current.profile if device.current else "" for device in devices)
    return [
        f"{render_variable_name(record, request, 'UUIDS')}={uuids}",
        f"{render_variable_name(record, request, 'PROFILES')}={profiles}",
    ]


def _base_requests(record: ClaimRecord) -> Iterator[str]:
    return iter(dict.fromkeys(device.base_request for device in record.devices))


def _render_node(node: DeviceNode) -> Json:
    rendered: Json = {"path": node.path, "type": "c", "major": node.major, "minor": node.minor}
    if node.host_path is not None:
        rendered["hostPath"] = node.host_path
    rendered["fileMode"] = node.mode
    rendered["permissions"] = "rw"
    if node.uid:
        rendered["uid"] = node.uid
    if node.gid:
        rendered["gid"] = node.gid
    return rendered


def _render_mount(record: ClaimRecord, request: str, host_path: str) -> Json:
    container_path = render_container_path(record, request)
    return {"hostPath": host_path, "containerPath": container_path, "options": ["ro", "nosuid", "nodev", "bind"]}
