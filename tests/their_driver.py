"""NVIDIA's DRA driver as far as it leaves something behind: its checkpoint and its CDI files, in its own structure.

Written here from facts about that structure: Go's JSON without spaces, twins `v1` and `v2`, the kubelet's checksum.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRIVER = "gpu.nvidia.com"


def render_device(request: str, pool: str, device: str, uid: str) -> dict[str, Any]:
    """What both kinds of prepared device share."""
    ids = [f"k8s.gpu.nvidia.com/claim={uid}-{device}"]
    return {"Requests": [request], "PoolName": pool, "DeviceName": device, "CDIDeviceIDs": ids}


@dataclass
class TheirDriver:
    """Claims by UID, as the checkpoint of `pool`'s node has them; `write` puts the file into `state_dir`."""

    pool: str
    boot_id: str
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)

    def give_gpu(self, uid: str, device: str, gpu_uuid: str, *, request: str = "r0", **state: Any) -> None:
        """A whole GPU, prepared; `state` is its configState."""
        body = {"info": {"uuid": gpu_uuid}, "device": render_device(request, self.pool, device, uid)}
        self._give(uid, device, request, {"gpu": body, "mig": None}, state)

    def give_partition(
        self, uid: str, device: str, gpu_uuid: str, *, mig_uuid: str, gi_id: int, request: str = "r0", **state: Any
    ) -> None:
        """A partition, prepared."""
        concrete = {"parentMinor": 0, "giId": gi_id, "ciId": 0, "migUUID": mig_uuid, "parentUUID": gpu_uuid}
        body = {"concrete": concrete, "device": render_device(request, self.pool, device, uid)}
        self._give(uid, device, request, {"gpu": None, "mig": body}, state)

    def give_vfio(self, uid: str, device: str, gpu_uuid: str) -> None:
        """A GPU for a virtual machine."""
        body = {"info": {"uuid": gpu_uuid}, "device": render_device("r0", self.pool, device, uid)}
        self._give(uid, device, "r0", {"gpu": None, "mig": None, "vfio": body}, {})

    def begin(self, uid: str, device: str) -> None:
        """A claim whose prepare did not end."""
        entry = {"checkpointState": "PrepareStarted", "status": self._render_status([self._result("r0", device)])}
        self.claims[uid] = entry | {"name": "half", "namespace": "default"}

    def allocate(self, uid: str, **result: Any) -> None:
        """Adds fields to every allocation result of the claim."""
        for one in self.claims[uid]["status"]["allocation"]["devices"]["results"]:
            one.update(result)

    def configure(self, uid: str, *configs: dict[str, Any]) -> None:
        """The opaque configs of the claim's allocation."""
        rendered = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": one}} for one in configs]
        self.claims[uid]["status"]["allocation"]["devices"]["config"] = rendered

    def render(self, *, twins: bool = True) -> bytes:
        """The file's bytes; without `twins` as a release wrote them that knew v1 alone."""
        done = {uid: one for uid, one in self.claims.items() if one["checkpointState"] == "PrepareCompleted"}
        old = {uid: {key: one[key] for key in ("status", "preparedDevices")} for uid, one in done.items()}
        v1 = {"preparedClaims": old} if old else {}
        top = {"checksum": compute_checksum(_render({"checksum": 0, "v1": v1})), "v1": v1}
        if not twins:
            return _render(top)
        v2: dict[str, Any] = {"checksum": 0, "preparedClaims": self.claims, "nodeBootID": self.boot_id}
        v2["checksum"] = compute_checksum(_render(v2))
        return _render(top | {"v2": v2})

    def write(self, state_dir: Path, *, twins: bool = True) -> Path:
        """Puts the checkpoint where that driver keeps it."""
        path = state_dir / "checkpoint.json"
        path.write_bytes(self.render(twins=twins))
        return path

    def write_cdi(self, folder: Path, *uids: str, nodes: tuple[str, ...] = ()) -> None:
        """Their CDI files of these claims; each device has `nodes` of the host."""
        for uid in uids:
            names = [one["device"] for one in self.claims[uid]["status"]["allocation"]["devices"]["results"]]
            lines = ["cdiVersion: 0.5.0", "kind: k8s.gpu.nvidia.com/claim", "containerEdits:"]
            lines += ["  env:", "  - NVIDIA_VISIBLE_DEVICES=void", "  - WROTE_IT=nvidia", "devices:"]
            for name in dict.fromkeys(names):
                lines += [f"- name: {uid}-{name}", "  containerEdits:", f"    env: [GIVEN={name}]"]
                lines += ["    deviceNodes:", *(f"    - path: {node}" for node in nodes)] if nodes else []
            folder.mkdir(parents=True, exist_ok=True)
            self.cdi_path(folder, uid).write_text("\n".join(lines) + "\n")

    @staticmethod
    def cdi_path(folder: Path, uid: str) -> Path:
        """Where that driver writes a claim's CDI file."""
        return folder / f"k8s.gpu.nvidia.com-claim_{uid}.yaml"

    def _give(self, uid: str, device: str, request: str, body: dict[str, Any], state: dict[str, Any]) -> None:
        entry = self.claims.setdefault(
            uid, {"checkpointState": "PrepareCompleted", "status": self._render_status([]), "preparedDevices": []}
        )
        entry["status"]["allocation"]["devices"]["results"].append(self._result(request, device))
        entry["preparedDevices"].append({"devices": [body], "configState": state})

    def _result(self, request: str, device: str) -> dict[str, Any]:
        return {"request": request, "driver": DRIVER, "pool": self.pool, "device": device}

    def _render_status(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        return {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": "pod"}]}


def compute_checksum(covered: bytes) -> int:
    """The kubelet's checkpoint manager: FNV-1a of 32 bits over Go's printed form of the bytes."""
    value = 2166136261
    for byte in f"([]uint8)[{' '.join(str(one) for one in covered)}]".encode():
        value = ((value ^ byte) * 16777619) % 2**32
    return value


def _render(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
