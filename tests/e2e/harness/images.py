"""One-layer OCI images around the machine's static busybox, written without a container engine or a registry."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

PAUSE = "registry.local/pause:1"
BUSYBOX = "registry.local/busybox:1"
_APPLETS = """
sh sleep cat ls env echo printf true false nc wget date ps mount grep stat id head tail find mkdir rm seq kill awk sort
test touch dd
"""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(path: Path, reference: str, command: Sequence[str]) -> None:
    """Writes the OCI archive of an image called `reference` whose default command is `command`."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    layer = blob(_render_layer(Path("/bin/busybox").read_bytes()), "application/vnd.oci.image.layer.v1.tar")
    config = {
        "architecture": _ARCHITECTURES[os.uname().machine],
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [layer],
    }
    entry = blob(json.dumps(manifest).encode(), str(manifest["mediaType"]))
    tag = reference.rsplit(":", 1)[-1]
    entry["annotations"] = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "manifests": [entry]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            _add_file(archive, name, data, 0o644)


def _render_layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in ("bin", "etc", "tmp", "proc", "sys", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(folder)
        _add_file(layer, "bin/busybox", busybox, 0o755)
        _add_file(layer, "etc/passwd", b"root:x:0:0::/:/bin/sh\n", 0o644)
        for applet in _APPLETS.split():
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
