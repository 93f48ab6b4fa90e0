"""The image's archive: the same blobs give the same file, the runtime finds its name, a damaged one is told."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from image import archive
from image.lockfile import ImageError


def pack(files: dict[str, bytes], mtime: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as target:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), mtime
            target.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def write_archive(path: Path, *layers: dict[str, bytes], mtime: int = 0) -> Path:
    """As an engine writes it: with names of its own, in an order of its own."""
    blobs = {}

    def blob(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    manifest = {"config": blob(b'{"os": "linux"}'), "layers": [blob(pack(layer)) for layer in layers]}
    entry = blob(json.dumps(manifest).encode()) | {"annotations": {"org.opencontainers.image.ref.name": "any:1"}}
    files = {
        **blobs,
        "index.json": json.dumps({"manifests": [entry]}).encode(),
        "oci-layout": b"{}",
        "repositories": b"",
    }
    path.write_bytes(pack(files, mtime))
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """An archive of two layers, both with the file `etc/name`, as `make image` leaves it."""
    source = write_archive(tmp_path / "source.tar", {"etc/name": b"old", "bin/x": bytes(1000)}, {"etc/name": b"new"})
    archive.rewrite(source, tmp_path / "image.tar", "tesela:0.1.0")
    return tmp_path / "image.tar"


@pytest.mark.parametrize(
    ("reference", "complete"),
    [
        ("tesela:0.1.0", "docker.io/library/tesela:0.1.0"),
        ("team/tesela:0.1.0", "docker.io/team/tesela:0.1.0"),
        ("registry.local/tesela:0.1.0", "registry.local/tesela:0.1.0"),
        ("mirror:5000/tesela:0.1.0", "mirror:5000/tesela:0.1.0"),
        ("localhost/tesela:0.1.0", "localhost/tesela:0.1.0"),
    ],
)
def test_a_name_is_completed_as_runtimes_do(reference: str, complete: str):
    assert archive.complete_reference(reference) == complete


def test_the_archive_carries_the_complete_name(written: Path):
    assert archive.read_facts(written).reference == "docker.io/library/tesela:0.1.0"


def test_sizes_are_those_of_the_layers(written: Path):
    assert archive.read_facts(written).unpacked_bytes == 1006


def test_a_file_is_read_from_the_last_layer_that_has_it(written: Path):
    assert archive.read_file(written, "etc/name") == b"new"


def test_a_file_of_an_earlier_layer_is_found(written: Path):
    assert archive.read_file(written, "bin/x") == bytes(1000)


def test_a_file_that_is_not_there_is_told(written: Path):
    with pytest.raises(ImageError, match="the image has no file etc/none"):
        archive.read_file(written, "etc/none")


def test_the_same_blobs_give_the_same_archive(tmp_path: Path):
    for number in (1, 2):
        source = write_archive(tmp_path / "source.tar", {"bin/x": b"x"}, mtime=number)
        archive.rewrite(source, tmp_path / f"{number}.tar", "tesela:0.1.0")

    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_a_damaged_blob_is_told(written: Path):
    written.write_bytes(written.read_bytes().replace(b"new", b"bad"))

    with pytest.raises(ImageError, match="is damaged"):
        archive.read_facts(written)


def test_another_kind_of_archive_is_told(tmp_path: Path):
    (tmp_path / "image.tar").write_bytes(pack({"manifest.json": b"[]"}))

    with pytest.raises(ImageError, match=r"not an OCI archive: it has no file index\.json"):
        archive.read_facts(tmp_path / "image.tar")
