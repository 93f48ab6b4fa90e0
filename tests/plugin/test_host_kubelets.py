"""Which kubelets the host's /proc shows, and whether root here is the host's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tesela.edge.host.folders import make_writable
from tesela.edge.host.kubelets import KubeletProcess, is_whole_user_namespace, list_kubelets

WHOLE = "         0          0 4294967295\n"
ROOTLESS = "         0     100000      65536\n"


def add_process(proc, pid, *words, comm="kubelet", uid_map=WHOLE):
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "cmdline").write_text("\0".join((*words, "")))
    (folder / "uid_map").write_text(uid_map)


@pytest.mark.parametrize(
    ("words", "root"),
    [
        (["/usr/bin/kubelet", "--v=2"], "/var/lib/kubelet"),
        (["kubelet", "--root-dir=/data/kubelet", "--v=2"], "/data/kubelet"),
        (["kubelet", "--root-dir", "/var/lib/k0s/kubelet"], "/var/lib/k0s/kubelet"),
        (["kubelet", "--root-dir"], "/var/lib/kubelet"),
    ],
)
def test_a_kubelet_s_folder_is_read_from_its_command(tmp_path, words, root):
    add_process(tmp_path, 812, *words)

    assert list_kubelets(tmp_path) == (KubeletProcess(pid=812, root=Path(root), rootless=False),)


def test_other_programs_are_no_kubelet(tmp_path):
    add_process(tmp_path, 1, "/usr/bin/kubelet-helper", comm="kubelet-helper")

    assert list_kubelets(tmp_path) == ()


def test_a_kubelet_in_a_user_namespace_is_rootless(tmp_path):
    add_process(tmp_path, 9, "kubelet", uid_map=ROOTLESS)

    assert [one.rootless for one in list_kubelets(tmp_path)] == [True]


def test_without_proc_no_kubelet_is_seen(tmp_path):
    assert list_kubelets(tmp_path / "none") == ()


@pytest.mark.parametrize(("text", "whole"), [(WHOLE, True), (ROOTLESS, False), ("", False)])
def test_root_is_the_host_s_where_every_id_is_its_own(tmp_path, text, whole):
    (tmp_path / "uid_map").write_text(text)

    assert is_whole_user_namespace(tmp_path / "uid_map") is whole


def test_a_kernel_without_user_namespaces_has_one_root(tmp_path):
    assert is_whole_user_namespace(tmp_path / "none")


# Folders


def test_a_folder_that_is_missing_is_made(tmp_path):
    assert (make_writable(tmp_path / "a/b"), (tmp_path / "a/b").is_dir()) == ("", True)


def test_a_file_in_the_place_of_a_folder_is_said(tmp_path):
    (tmp_path / "a").write_text("")

    assert make_writable(tmp_path / "a") == "it is no folder"


def test_a_folder_that_cannot_be_made_says_why(tmp_path):
    (tmp_path / "a").write_text("")

    assert make_writable(tmp_path / "a/b") == "it cannot be made: Not a directory"
