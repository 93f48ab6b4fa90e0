"""The command line of `tesela plugin`: what cannot work ends at once, in one line that says what to do."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
from tesela.cli.main import main
from tesela.cli.plugin import add_arguments, read_config
from tesela.core.driver_files import LibraryMode


def run(capsys, *arguments):
    """The exit code and the lines on stderr of a start that ends before it reads a kubeconfig."""
    code = main(["plugin", "--kubeconfig", "/nonexistent", "--node-name", "node-1", *arguments])
    return code, capsys.readouterr().err.splitlines()


USAGE = [["plugin", "--driver-wait", "x"], ["plugin", "--nonsense"], ["forget"], ["sim", "fail"], ["sing"]]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage_is_one_line(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)

    assert re.fullmatch(r"tesela[a-z ]*: .+; see tesela[a-z ]* --help\n", capsys.readouterr().err)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e9"])
@pytest.mark.parametrize("flag", ["--driver-wait", "--nvml-timeout"])
def test_a_wait_that_is_no_number_of_seconds_is_refused(capsys, flag, seconds):
    code, (line,) = run(capsys, flag, seconds)

    assert (code, line.startswith(f"tesela plugin: {flag} is ")) == (1, True)


@pytest.mark.parametrize("name", ["n 1", "Node-1", "node_1", "-n", "n" * 254])
def test_a_name_that_no_node_can_have_is_refused(capsys, name):
    code, (line,) = run(capsys, f"--node-name={name}")

    assert (code, line) == (
        1,
        f"tesela plugin: --node-name {name!r} is no node's name: take it from `kubectl get nodes`",
    )


@pytest.fixture
def kubeconfig(tmp_path):
    """One that loads; its server is never asked."""
    user, cluster = {"name": "me", "user": {}}, {"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "it", "context": {"cluster": "here", "user": "me"}}
    document = {"current-context": "it", "users": [user], "clusters": [cluster], "contexts": [context]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize("flag", ["--nvml", "--policy", "--kubeconfig"])
def test_a_setting_that_cannot_work_ends_the_start_before_the_driver_is_waited_for(capsys, kubeconfig, flag):
    code, (line,) = run(capsys, "--kubeconfig", kubeconfig, flag, "simulated:abacus")

    assert (code, line.startswith("tesela plugin: ")) == (1, True)


@pytest.mark.parametrize("flag", ["--proc-root", "--sys-root"])
def test_a_root_that_is_not_there_is_refused(capsys, flag, tmp_path: Path):
    code, (line,) = run(capsys, flag, str(tmp_path / "none"))

    assert (code, line.startswith(f"tesela plugin: {flag} {tmp_path}/none is no folder here")) == (1, True)


# Folders


def read(*arguments):
    """The settings that these flags give."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_config(parser.parse_args(["--node-name", "node-1", *arguments]))


def list_kubelet_folders(config):
    return [str(path) for path in (config.plugins_dir, config.registry_dir, config.pod_resources)]


def test_the_kubelet_s_folders_lie_in_its_root():
    assert list_kubelet_folders(read("--kubelet-root", "/k")) == [
        "/k/plugins",
        "/k/plugins_registry",
        "/k/pod-resources/kubelet.sock",
    ]


def test_each_of_the_kubelet_s_folders_may_lie_elsewhere():
    moved = read("--kubelet-root=/k", "--plugins-dir=/p", "--registry-dir=/r", "--pod-resources=/s")

    assert list_kubelet_folders(moved) == ["/p", "/r", "/s"]


def test_the_driver_is_seen_at_its_root_where_nobody_says_otherwise():
    assert str(read("--driver-root", "/run/nvidia/driver").driver_root_mount) == "/run/nvidia/driver"


def test_libraries_come_as_they_may_where_nobody_says_otherwise():
    assert read().driver_libraries is LibraryMode.AUTO


def test_a_source_of_libraries_that_is_none_is_refused(capsys):
    code, (line,) = run(capsys, "--driver-libraries", "magic")

    assert (code, line) == (
        1,
        "tesela plugin: --driver-libraries is 'magic': give one of auto, toolkit, mount, none",
    )
