"""What is taken of the toolkit's document, and where libraries are mounted without it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.driver_files import (
    DriverEdits,
    DriverFiles,
    FileMount,
    Hook,
    Library,
    LibrarySource,
    find_gap,
    keep_existing,
    parse_toolkit_cdi,
    place_on_host,
    plan_library_mounts,
    render_digest,
    render_driver_edits,
)
from tesela.core.errors import DocumentError

LIB = "/usr/lib/x86_64-linux-gnu"
CUDA = FileMount(host_path=f"{LIB}/libcuda.so.580.1", container_path=f"{LIB}/libcuda.so.580.1")
SOCKET = FileMount(host_path="/run/nvidia-persistenced/socket", container_path="/run/nvidia-persistenced/socket")
LINKS = Hook(name="createContainer", path="/usr/bin/nvidia-cdi-hook", args=("nvidia-cdi-hook", "create-symlinks"))
ENOUGH = DriverEdits(mounts=(CUDA, SOCKET), hooks=(LINKS,), environment=("A=b",))


def render(**edits):
    return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [], "containerEdits": edits})


# The toolkit's document


def test_what_the_toolkit_says_comes_out_as_it_went_in():
    said = {
        "mounts": [{"hostPath": "/x/a", "containerPath": "/x/b", "options": ["ro", "rbind"]}],
        "hooks": [
            {"hookName": "createContainer", "path": "/x/h", "args": ["h", "x"], "env": ["D=0"], "timeout": 5},
            {"hookName": "createRuntime", "path": "/x/h"},
        ],
        "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib"],
    }

    assert render_driver_edits(parse_toolkit_cdi(render(**said))) == said


def test_device_nodes_and_what_newer_toolkits_may_say_are_left():
    said = {"deviceNodes": [{"path": "/dev/nvidiactl"}], "intelRdt": {}, "additionalGids": [44]}

    assert parse_toolkit_cdi(render(**said)) == DriverEdits()


def test_the_variable_that_our_document_has_itself_is_left():
    assert parse_toolkit_cdi(render(env=["NVIDIA_VISIBLE_DEVICES=void", "B=c"])).environment == ("B=c",)


def test_a_file_system_of_its_own_is_left():
    mounts = [{"hostPath": "tmpfs", "containerPath": "/x", "type": "tmpfs"}]

    assert parse_toolkit_cdi(render(mounts=mounts)).mounts == ()


@pytest.mark.parametrize(
    ("edits", "path"),
    [
        ({"mounts": {}}, "containerEdits.mounts"),
        ({"mounts": [1]}, "containerEdits.mounts[0]"),
        ({"mounts": [{"hostPath": "a", "containerPath": "/b"}]}, "containerEdits.mounts[0].hostPath"),
        ({"mounts": [{"hostPath": "/x/a\0", "containerPath": "/b"}]}, "containerEdits.mounts[0].hostPath"),
        ({"mounts": [{"hostPath": "/x/a"}]}, "containerEdits.mounts[0].containerPath"),
        (
            {"mounts": [{"hostPath": "/x/a", "containerPath": "/x/b", "options": [1]}]},
            "containerEdits.mounts[0].options[0]",
        ),
        ({"hooks": [{"hookName": "whenever", "path": "/h"}]}, "containerEdits.hooks[0].hookName"),
        ({"hooks": [{"hookName": "poststop"}]}, "containerEdits.hooks[0].path"),
        ({"hooks": [{"hookName": "poststop", "path": "/x/h", "timeout": True}]}, "containerEdits.hooks[0].timeout"),
        ({"env": [None]}, "containerEdits.env[0]"),
        ({"env": ["A=\ud800"]}, "containerEdits.env[0]"),
        ({"env": ["A"]}, "containerEdits.env[0]"),
        ({"hooks": [{"hookName": "poststop", "path": "/x/h", "env": ["=b"]}]}, "containerEdits.hooks[0].env[0]"),
    ],
)
def test_a_wrong_field_is_named(edits, path):
    with pytest.raises(DocumentError) as caught:
        parse_toolkit_cdi(render(**edits))

    assert caught.value.path == path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["/x/a", "createContainer"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["containerEdits", "mounts", "hooks", "env", "path", "hostPath", "hookName", "args", "type"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_other_document_is_refused_by_name_or_read(document):
    try:
        edits = parse_toolkit_cdi(json.dumps(document))
    except DocumentError:
        return

    assert parse_toolkit_cdi(json.dumps({"containerEdits": render_driver_edits(edits)})) == edits


@pytest.mark.parametrize(
    ("host_path", "container_path"),
    [
        ("/x/a", "/"),
        ("/x/a", "/etc"),
        ("/x/a", "/etc/"),
        ("/x/a", "/x/../etc"),
        ("/x/a", "//etc/x"),
        ("/x/a", "/./dev/sda"),
        ("/x/a", "/proc/sys/kernel"),
        ("/x/a", "/dev/sda"),
        ("/", "/x/host"),
        ("/etc", "/x/host"),
        ("/x/../etc", "/x/host"),
    ],
)
def test_no_folder_of_the_root_is_given_or_hidden(host_path, container_path):
    with pytest.raises(DocumentError, match="is no place for a file of the GPU driver"):
        parse_toolkit_cdi(render(mounts=[{"hostPath": host_path, "containerPath": container_path}]))


@pytest.mark.parametrize("text", ["cdiVersion: 0.5.0", "[" * 200_000], ids=["yaml", "deep"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(DocumentError, match="no JSON"):
        parse_toolkit_cdi(text)


# On the host


def test_paths_seen_in_a_folder_become_the_hosts():
    seen = DriverEdits(
        mounts=(FileMount(host_path="/driver-root/lib/x", container_path="/lib/x"),),
        hooks=(Hook(name="createContainer", path="/driver-root/usr/bin/h"),),
    )

    placed = place_on_host(seen, seen_root="/driver-root", host_root="/run/nvidia/driver")

    assert (placed.mounts[0].host_path, placed.hooks[0].path) == (
        "/run/nvidia/driver/lib/x",
        "/run/nvidia/driver/usr/bin/h",
    )


@pytest.mark.parametrize("path", ["/dev/null", "/driver-rooted/x"])
def test_a_path_outside_of_that_folder_is_the_hosts_already(path):
    seen = DriverEdits(mounts=(FileMount(host_path=path, container_path="/x"),))

    assert place_on_host(seen, seen_root="/driver-root", host_root="/host") == seen


def test_dev_null_is_the_hosts_own_under_every_root():
    seen = DriverEdits(mounts=(FileMount(host_path="/dev/null", container_path="/x"),))

    assert place_on_host(seen, seen_root="/", host_root="/run/nvidia/driver") == seen


def test_what_the_host_does_not_have_is_left_out():
    kept = keep_existing(ENOUGH, lambda path: path == CUDA.host_path)

    assert kept == DriverEdits(mounts=(CUDA,), environment=("A=b",))


def test_edits_with_cuda_and_links_are_enough():
    assert find_gap(ENOUGH, "580.1") == ""


@pytest.mark.parametrize(
    ("edits", "version", "says"),
    [
        (ENOUGH, "590.1", r"it names no libcuda\.so\.590\.1"),
        (DriverEdits(mounts=(CUDA,)), "580.1", r"create-symlinks \(nvidia-cdi-hook\) is not on the host"),
    ],
)
def test_what_a_container_could_not_use_is_said(edits, version, says):
    assert re.search(says, find_gap(edits, version))


# By SONAME


def test_a_library_is_mounted_where_both_families_of_linkers_look():
    mounts = plan_library_mounts([Library(host_path="/l/libx.so.580", soname="libx.so.1")], machine="aarch64")

    assert [(one.host_path, one.container_path) for one in mounts] == [
        ("/l/libx.so.580", "/usr/lib64/libx.so.1"),
        ("/l/libx.so.580", "/usr/lib/aarch64-linux-gnu/libx.so.1"),
    ]


def test_cuda_has_the_name_of_its_development_link_too():
    mounts = plan_library_mounts([Library(host_path="/l/libcuda.so.580", soname="libcuda.so.1")], machine="x86_64")

    assert {one.container_path for one in mounts} == {
        f"{folder}/{name}" for folder in ("/usr/lib64", LIB) for name in ("libcuda.so", "libcuda.so.1")
    }


@given(
    st.lists(
        st.builds(
            Library,
            host_path=st.sampled_from(["/a/1", "/a/2", "/b/1"]),
            soname=st.sampled_from(["libcuda.so.1", "libx.so.2", "liby.so"]),
        )
    )
)
def test_no_place_in_a_container_is_mounted_twice(libraries):
    places = [mount.container_path for mount in plan_library_mounts(libraries, machine="x86_64")]

    assert len(places) == len(set(places))


def test_the_first_library_of_a_soname_counts():
    mounts = plan_library_mounts(
        [Library(host_path="/first", soname="libx.so.1"), Library(host_path="/second", soname="libx.so.1")],
        machine="x86_64",
    )

    assert {mount.host_path for mount in mounts} == {"/first"}


# What a container gets


def test_a_socket_that_is_not_there_now_is_left_out():
    rendered = render_driver_edits(ENOUGH, frozenset({SOCKET.host_path}))

    assert [mount["hostPath"] for mount in rendered["mounts"]] == [CUDA.host_path]


def test_nothing_is_no_edit():
    assert render_driver_edits(DriverEdits()) == {}


def files(**changes):
    return DriverFiles(
        **{"key": "k", "driver_version": "580.1", "source": LibrarySource.TOOLKIT, "edits": ENOUGH} | changes
    )


@pytest.mark.parametrize(
    ("changed", "is_another"),
    [
        (files(key="other"), False),
        (files(edits=DriverEdits(mounts=(CUDA,), hooks=(LINKS,), environment=("A=b",))), False),
        (files(driver_version="590.1"), True),
        (files(edits=DriverEdits(mounts=(CUDA, SOCKET), hooks=(LINKS,))), True),
    ],
    ids=["key", "socket", "version", "environment"],
)
def test_files_are_others_where_containers_get_something_else_that_lasts(changed, is_another):
    assert (render_digest(changed) != render_digest(files())) is is_another
