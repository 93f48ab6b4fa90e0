"""The image as one file: an OCI archive that every engine and containerd's `ctr images import` reads."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from image.lockfile import ImageError

SBOM = "usr/share/tesela/sbom.cdx.json"
"""The file of the image that lists what is in it (`inside/sbom.py`)."""
# What containerd and Docker take a name without a registry for.
_DEFAULT_REGISTRY = "docker.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an archive holds."""

    reference: str
    manifest_digest: str
    compressed_bytes: int
    unpacked_bytes: int


def complete_reference(reference: str) -> str:
    """The name under which a container runtime looks for `reference`, which may lack registry and namespace."""
    first, slash, _ = reference.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        return reference
    return f"{_DEFAULT_REGISTRY}/{reference}" if slash else f"{_DEFAULT_REGISTRY}/library/{reference}"


def rewrite(source: Path, target: Path, reference: str) -> None:
    """Writes `source` anew with the image's complete name in it; the same blobs give the same bytes."""
    with tarfile.open(source) as archive:
        files = {member.name: _read(archive, member.name) for member in archive if member.isfile()}
    index = json.loads(files["index.json"])
    if len(index["manifests"]) != 1:
        raise ImageError(f"{source} holds {len(index['manifests'])} images instead of one")
    name = complete_reference(reference)
    index["manifests"][0]["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1],
    }
    files["index.json"] = json.dumps(index, sort_keys=True).encode()
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        for path in sorted(name for name in files if name in {"index.json", "oci-layout"} or name.startswith("blobs/")):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(files[path]), 0o644
            archive.addfile(entry, io.BytesIO(files[path]))
    partial.rename(target)


def read_facts(path: Path) -> Facts:
    """Sizes and names; the layers are unpacked to count them."""
    with tarfile.open(path) as archive:
        entry = json.loads(_read(archive, "index.json"))["manifests"][0]
        manifest = _read_blob(archive, entry["digest"])
        layers = json.loads(manifest)["layers"]
        unpacked = 0
        for layer in layers:
            with tarfile.open(fileobj=io.BytesIO(_read_blob(archive, layer["digest"]))) as files:
                unpacked += sum(member.size for member in files)
    return Facts(
        reference=entry["annotations"]["io.containerd.image.name"],
        manifest_digest=entry["digest"],
        compressed_bytes=sum(layer["size"] for layer in layers),
        unpacked_bytes=unpacked,
    )


def read_config(path: Path) -> dict[str, Any]:
    """The image's configuration: architecture, environment, entry point, labels."""
    with tarfile.open(path) as archive:
        entry = json.loads(_read(archive, "index.json"))["manifests"][0]
        manifest = json.loads(_read_blob(archive, entry["digest"]))
        config: dict[str, Any] = json.loads(_read_blob(archive, manifest["config"]["digest"]))
    return config


def list_files(path: Path) -> set[str]:
    """The names of all files of the image's root, links among them, without a slash in front."""
    with tarfile.open(path) as archive:
        entry = json.loads(_read(archive, "index.json"))["manifests"][0]
        layers = json.loads(_read_blob(archive, entry["digest"]))["layers"]
        names = set()
        for layer in layers:
            with tarfile.open(fileobj=io.BytesIO(_read_blob(archive, layer["digest"]))) as files:
                names |= {member.name.removeprefix("./") for member in files if not member.isdir()}
    return names


def read_file(path: Path, name: str) -> bytes:
    """A file of the image's root, from the last layer that has it; ImageError where none has."""
    with tarfile.open(path) as archive:
        entry = json.loads(_read(archive, "index.json"))["manifests"][0]
        for layer in reversed(json.loads(_read_blob(archive, entry["digest"]))["layers"]):
            with tarfile.open(fileobj=io.BytesIO(_read_blob(archive, layer["digest"]))) as files:
                member = next((one for one in files if one.name.removeprefix("./") == name and one.isfile()), None)
                if member is not None:
                    return _read(files, member.name)
    raise ImageError(f"{path}: the image has no file {name}")


def _read_blob(archive: tarfile.TarFile, digest: str) -> bytes:
    kind, _, value = digest.partition(":")
    data = _read(archive, f"blobs/{kind}/{value}")
    if hashlib.new(kind, data).hexdigest() != value:
        raise ImageError(f"{archive.name!r}: blob {digest} is damaged")
    return data


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise ImageError(f"{archive.name!r} is not an OCI archive: it has no file {name}")
    return file.read()
