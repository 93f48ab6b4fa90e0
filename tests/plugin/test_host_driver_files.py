"""The driver's files on the host: links of another root, libraries by name, and what makes them others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elf_files import AARCH64, install_libraries, install_toolkit, render_shared_object
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.driver_files import DriverEdits, FileMount
from tesela.core.errors import StateError
from tesela.edge.host.driver_files import DriverTree
from tesela.edge.host.elf import SharedObject, read_shared_object

VERSION = "580.95.05"
LIB = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "driver-root"
    folder.mkdir()
    return folder


def make_tree(root, host_root="/", machine="x86_64"):
    return DriverTree(driver_root=Path(host_root), driver_root_mount=root, machine=machine)


def by_container_path(edits):
    return {mount.container_path: mount.host_path for mount in edits.mounts}


# Shared objects


def write(path, data):
    path.write_bytes(data)
    return path


def test_a_shared_object_tells_machine_and_soname(tmp_path):
    path = write(tmp_path / "x", render_shared_object("libx.so.1", machine=AARCH64))

    assert read_shared_object(path) == SharedObject(AARCH64, "libx.so.1")


def test_a_pipe_is_none_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x")

    assert read_shared_object(tmp_path / "x") is None


def test_one_without_soname_has_none(tmp_path):
    assert read_shared_object(write(tmp_path / "x", render_shared_object())) == SharedObject(62, "")


@pytest.mark.parametrize(
    "data",
    [b"", b"#!/bin/sh\n", render_shared_object("libx.so.1", kind=2), b"\x7fELF\x01" + render_shared_object()[5:]],
    ids=["empty", "script", "program", "32 bits"],
)
def test_what_is_no_shared_object_of_64_bits_is_none(tmp_path, data):
    assert read_shared_object(write(tmp_path / "x", data)) is None


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
    st.integers(0, 400),
)
def test_a_damaged_one_is_read_or_none(tmp_path_factory, changes, length):
    data = bytearray(render_shared_object("libnvidia-glcore.so.580.95.05"))
    for position, value in changes:
        data[position % len(data)] = value
    path = write(tmp_path_factory.getbasetemp() / "damaged.so", bytes(data[: len(data) - length % len(data)]))

    found = read_shared_object(path)

    assert found is None or len(found.soname) <= 255


# Libraries by SONAME


def test_libraries_of_this_version_are_mounted_from_the_hosts_path(root):
    install_libraries(root, VERSION)

    places = by_container_path(make_tree(root, "/run/nvidia/driver").find_library_edits(VERSION))

    assert places["/usr/lib64/libcuda.so.1"] == f"/run/nvidia/driver/{LIB}/libcuda.so.{VERSION}"


def test_libraries_of_another_version_are_not(root):
    install_libraries(root, VERSION)
    install_libraries(root, "590.1")

    places = by_container_path(make_tree(root).find_library_edits("590.1"))

    assert {Path(one).suffixes[-1] for one in places.values()} == {".1"}


def test_libraries_of_another_machine_are_not(root):
    install_libraries(root, VERSION, machine=AARCH64)

    with pytest.raises(
        StateError, match=rf"there is no libcuda\.so\.{VERSION} for x86_64 in usr/lib64, .* below {root}"
    ):
        make_tree(root).find_library_edits(VERSION)


def test_a_soname_that_would_lead_elsewhere_is_not_followed(root):
    folder = install_libraries(root, VERSION)
    (folder / f"libevil.so.{VERSION}").write_bytes(render_shared_object("../../../etc/passwd"))

    places = by_container_path(make_tree(root).find_library_edits(VERSION))

    assert f"/usr/lib64/libevil.so.{VERSION}" in places


def test_a_folder_by_two_names_is_looked_into_once(root):
    install_libraries(root, VERSION, "usr/lib64")
    (root / "lib64").symlink_to("/usr/lib64")

    places = by_container_path(make_tree(root).find_library_edits(VERSION))

    assert {str(Path(one).parent) for one in places.values()} == {"/usr/lib64"}


def test_a_link_that_starts_at_the_hosts_root_is_followed_there(root):
    install_libraries(root, VERSION, "opt/nvidia/lib")
    (root / "usr").mkdir()
    (root / "usr/lib64").symlink_to("/opt/nvidia/lib")

    places = by_container_path(make_tree(root).find_library_edits(VERSION))

    assert places["/usr/lib64/libcuda.so.1"] == f"/opt/nvidia/lib/libcuda.so.{VERSION}"


def test_what_finds_vulkan_and_the_program_come_along(root):
    install_libraries(root, VERSION)
    for name in ("usr/share/vulkan/icd.d/nvidia_icd.json", "usr/bin/nvidia-smi"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()

    places = by_container_path(make_tree(root).find_library_edits(VERSION))

    assert (places["/etc/vulkan/icd.d/nvidia_icd.json"], places["/usr/bin/nvidia-smi"]) == (
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
        "/usr/bin/nvidia-smi",
    )


# What there is, and whether it is the same


@pytest.mark.parametrize("path", ["/usr/bin/none", "/elsewhere"])
def test_a_path_that_is_missing_or_cannot_be_seen_does_not_exist(root, path):
    assert not make_tree(root, "/usr").exists(path)


def test_dev_null_of_the_host_is_taken_for_granted(root):
    edits = DriverEdits(mounts=(FileMount(host_path="/dev/null", container_path="/x"),))

    assert make_tree(root).find_change(make_tree(root).identify(edits)) == ""


@pytest.fixture
def known(root):
    """A tree, and what it found."""
    install_libraries(root, VERSION)
    tree = make_tree(root)
    return tree, tree.identify(tree.find_library_edits(VERSION))


def test_files_that_nobody_touched_are_the_same(known):
    tree, identities = known

    assert tree.find_change(identities) == ""


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"new")], ids=["gone", "written"])
def test_a_file_that_changed_is_named(root, known, change):
    tree, identities = known

    change(root / LIB / f"libcuda.so.{VERSION}")

    assert tree.find_change(identities) == f"/{LIB}/libcuda.so.{VERSION}"


def test_a_file_that_goes_while_it_is_looked_at_is_said(root):
    install_libraries(root, VERSION)
    edits = make_tree(root).find_library_edits(VERSION)
    (root / LIB / f"libcuda.so.{VERSION}").unlink()

    with pytest.raises(StateError, match=rf"/{LIB}/libcuda\.so\.{VERSION} is gone from the host"):
        make_tree(root).identify(edits)


def test_the_gpu_operators_toolkit_is_found(root):
    install_toolkit(root, VERSION, folder="usr/local/nvidia/toolkit")

    assert str(make_tree(root).find_toolkit()) == "/usr/local/nvidia/toolkit/nvidia-ctk"


def add_toolkit(root):
    install_toolkit(root, VERSION)


def add_socket(root):
    (root / "run/nvidia-persistenced").mkdir(parents=True)
    (root / "run/nvidia-persistenced/socket").touch()


@pytest.mark.parametrize("change", [add_toolkit, add_socket])
def test_another_toolkit_or_service_is_another_key(root, change):
    before = make_tree(root).render_key(VERSION, wanted="auto")

    change(root)

    assert make_tree(root).render_key(VERSION, wanted="auto") != before


def test_a_socket_that_is_not_there_is_missing(root):
    add_socket(root)
    edits = DriverEdits(
        mounts=tuple(
            FileMount(host_path=path, container_path=path) for path in ("/run/nvidia-persistenced/socket", "/run/gone")
        )
    )

    assert make_tree(root).find_missing(edits) == {"/run/gone"}
