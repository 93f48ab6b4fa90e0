"""CDI and metadata files: present or not, never half, and nobody else's."""

from __future__ import annotations

import stat

import pytest
from tesela.core.errors import ClaimRefused, StateError, TryAgain
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.metadata_files import MetadataFiles

DOCUMENT = {"cdiVersion": "0.5.0", "kind": "k8s.gpu.nvidia.com/claim", "devices": []}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cdi"


@pytest.fixture
def files(folder):
    return CdiFiles(folder)


@pytest.fixture
def metadata(tmp_path):
    return MetadataFiles(tmp_path)


def test_a_document_is_read_back(files):
    files.write("uid-1", DOCUMENT)

    assert files.read("uid-1") == DOCUMENT


def test_a_document_has_the_name_that_runtimes_and_people_know(files, folder):
    files.write("uid-1", DOCUMENT)

    assert [p.name for p in folder.iterdir()] == ["k8s.gpu.nvidia.com-claim_uid-1.json"]


def test_a_document_is_readable_to_all(files):
    files.write("uid-1", DOCUMENT)

    assert stat.S_IMODE(files.path("uid-1").stat().st_mode) == 0o644


def test_a_document_of_nvidias_driver_for_the_same_claim_gives_way(files, folder):
    folder.mkdir()
    theirs = folder / "k8s.gpu.nvidia.com-claim_uid-1.yaml"
    theirs.write_text("cdiVersion: 0.5.0")

    files.write("uid-1", DOCUMENT)

    assert not theirs.exists()


def test_only_our_documents_are_listed(files, folder):
    files.write("b", DOCUMENT)
    files.write("a", DOCUMENT)
    for other in ("nvidia.yaml", "k8s.gpu.nvidia.com-claim_c.yaml", ".k8s.gpu.nvidia.com-claim_d.json.tmp"):
        (folder / other).write_text("")

    assert files.list_ours() == ("a", "b")


def test_without_a_folder_there_are_no_documents(files):
    assert (files.list_ours(), files.read("uid-1"), files.remove("uid-1")) == ((), None, False)


def test_a_removed_document_is_gone(files):
    files.write("uid-1", DOCUMENT)

    assert (files.remove("uid-1"), files.read("uid-1")) == (True, None)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff"])
def test_a_damaged_document_is_named(files, data):
    files.write("uid-1", DOCUMENT)
    files.path("uid-1").write_bytes(data)

    with pytest.raises(StateError, match=r"claim_uid-1\.json is no"):
        files.read("uid-1")


def test_a_full_disk_leaves_no_document(files, folder):
    folder.mkdir()
    (folder / ".k8s.gpu.nvidia.com-claim_uid-1.json.tmp").symlink_to("/dev/full")

    with pytest.raises(TryAgain, match="No space left on device"):
        files.write("uid-1", DOCUMENT)

    assert list(folder.iterdir()) == []


def test_a_uid_that_is_a_path_has_no_document(files):
    with pytest.raises(ClaimRefused):
        files.write("../../etc/x", DOCUMENT)


def test_metadata_lies_under_uid_and_request(metadata, tmp_path):
    metadata.write("uid-1", "gpu", b"{}")

    assert (tmp_path / "dra-device-metadata/uid-1/gpu/metadata.json").read_bytes() == b"{}"


def test_changed_metadata_stays_the_file_that_containers_have_mounted(metadata):
    metadata.write("uid-1", "gpu", b"{}")
    inode = metadata.path("uid-1", "gpu").stat().st_ino

    metadata.write("uid-1", "gpu", b'{"generation": 2}')

    path = metadata.path("uid-1", "gpu")
    assert (path.read_bytes(), path.stat().st_ino) == (b'{"generation": 2}', inode)


def test_all_metadata_of_a_claim_goes_at_once(metadata):
    metadata.write("uid-1", "gpu", b"{}")
    metadata.write("uid-1", "other", b"{}")
    metadata.write("uid-2", "gpu", b"{}")

    metadata.remove("uid-1")

    assert metadata.list_claims() == ("uid-2",)


def test_removing_metadata_twice_is_no_error(metadata):
    metadata.remove("uid-1")

    assert metadata.list_claims() == ()


def test_a_request_that_is_a_path_has_no_metadata(metadata):
    with pytest.raises(StateError, match="no DNS label"):
        metadata.path("uid-1", "../x")
