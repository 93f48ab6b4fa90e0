"""What must be right around the driver before it touches a GPU: what ends the start, and what is waited for."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import shutil
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from namesake import Namesake
from node_program import make_program
from tesela.core.errors import ApiError, ApiNotFound, ApiUnavailable, StartError
from tesela.plugin.preflight import Preflight, check_host


class Api:
    """An API server that answers a list with `error`, where there is one; `version` None: it does not tell."""

    def __init__(self, error=None, version="v1.37.2"):
        self.error = error
        self.version = version

    def list(self, resource, namespace=None, field_selector=None):
        if self.error is not None:
            raise self.error

    def get_server_version(self):
        if self.version is None:
            raise ApiUnavailable(503, "ServiceUnavailable", "it is away")
        return self.version


@pytest.fixture
def config(short_path):
    world, config = make_program(short_path, "a30")
    yield config
    world.kube.close()


@contextlib.contextmanager
def publishing_elsewhere(state_dir):
    program = (
        "import sys; from pathlib import Path; from tesela.edge.store.locks import FileLocks; "
        "print(FileLocks(Path(sys.argv[1])).publisher_lock().acquire(5), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(state_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"True\n"
        yield
        child.kill()


def obstacles(config, api=None):
    return list(Preflight(config, api or Api(), lambda _sentence: None).list_obstacles())


# Folders


def test_a_node_as_it_should_be_passes(config):
    assert check_host(config) is None


def test_a_registry_that_is_missing_names_the_flag(config):
    shutil.rmtree(config.registry_dir)

    with pytest.raises(StartError, match=f"{config.registry_dir} is no folder here: .* --kubelet-root"):
        check_host(config)


@pytest.mark.parametrize("which", ["cdi_dir", "plugins_dir"])
def test_a_folder_that_cannot_be_written_is_named(config, which):
    path = getattr(config, which)
    if path.is_dir():
        shutil.rmtree(path)
    path.write_text("")

    with pytest.raises(StartError, match=f"cannot write into {path}"):
        check_host(config)


def test_a_rootless_process_cannot_drive_real_gpus(config):
    with pytest.raises(StartError, match="run the kubelet as the host's root, not rootless"):
        check_host(dataclasses.replace(config, nvml="real"), rootless=lambda: True)


def test_a_rootless_process_may_drive_simulated_gpus(config):
    assert check_host(config, rootless=lambda: True) is None


@pytest.mark.parametrize(
    ("folder", "flag"), [("proc", "--proc-root"), ("sys", "--sys-root"), ("dev", "--dev-root-mount")]
)
def test_a_folder_of_the_host_that_is_missing_is_an_obstacle(config, folder, flag):
    shutil.rmtree(config.dev_root / folder)

    (sentence,) = obstacles(config)
    assert sentence == (f"{config.dev_root / folder} is no folder here: mount the host's there, or point {flag} at it")


# The API server

NO_RESOURCE = ApiNotFound(404, "NotFound", "the server could not find the requested resource")
DENIED = ApiError(403, "Forbidden", "resourceslices is forbidden")
UNKNOWN = ApiError(401, "Unauthorized", "Unauthorized")


@pytest.mark.parametrize(
    ("api", "sentence"),
    [
        (Api(NO_RESOURCE, "v1.33.4"), r"\(v1\.33\.4\) does not serve .*/v1: tesela needs Kubernetes 1\.34 or later"),
        (Api(NO_RESOURCE, "v1.34.0"), r"\(v1\.34\.0\) .* switched off there; set --feature-gates=DynamicResourceAlloc"),
        (Api(NO_RESOURCE, None), "of unknown version"),
        (Api(DENIED), "does not let this driver list ResourceSlices .*: apply its RBAC objects"),
        (Api(UNKNOWN), "does not know who this is .*: check the ServiceAccount or --kubeconfig"),
    ],
)
def test_an_api_server_that_cannot_serve_the_driver_is_an_obstacle(config, api, sentence):
    (said,) = obstacles(config, api)

    assert re.search(sentence, said), said


def test_an_api_server_that_is_away_is_none(config):
    assert obstacles(config, Api(ApiUnavailable(0, "", "no answer"))) == []


# Another driver


def test_another_driver_of_our_name_is_an_obstacle(config):
    with closing(Namesake(config.registry_dir)) as other:
        (sentence,) = obstacles(config)

    assert sentence.startswith(
        f"another driver of the name gpu.nvidia.com serves this node at {other.socket}: remove it"
    )


def test_a_socket_beside_a_process_of_tesela_that_publishes_is_taken_for_its_own(config):
    """A release that does not tell what it is; in an update it ends only when the next one is ready."""
    with closing(Namesake(config.registry_dir)), publishing_elsewhere(config.state_dir):
        assert obstacles(config) == []


# The wait


def test_an_obstacle_that_goes_ends_the_wait(config):
    other, told = Namesake(config.registry_dir), []

    def mend(sentence):
        told.append(sentence)
        other.close()

    preflight = Preflight(dataclasses.replace(config, driver_wait_s=60), Api(), mend)

    assert (preflight.wait(threading.Event(), period_s=0.01), len(told)) == (True, 1)


def test_an_obstacle_that_stays_ends_the_start_with_its_sentence(config):
    with pytest.raises(StartError, match=r"gave up after 0 s: the API server \(v1.33.0\)"):
        Preflight(config, Api(NO_RESOURCE, "v1.33.0"), lambda _sentence: None).wait(threading.Event())


def test_an_obstacle_is_said_once_and_not_at_every_look(config, caplog):
    stop, told = threading.Event(), []

    def tell(sentence):
        told.append(sentence)
        if len(told) == 3:
            stop.set()

    preflight = Preflight(dataclasses.replace(config, driver_wait_s=60), Api(NO_RESOURCE), tell)
    with caplog.at_level(logging.WARNING):
        ended = preflight.wait(stop, period_s=0.01)

    assert (ended, len([one for one in caplog.messages if one.startswith("waiting, ")])) == (False, 1)
