from __future__ import annotations

import base64
import hashlib
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tesela.core.errors import StartError
from tesela.edge.kubelet.sockets import (
    MAX_PATH_BYTES,
    is_registrar_of,
    is_service_of_a_pod,
    plan_sockets,
)

PLUGINS = PurePosixPath("/var/lib/kubelet/plugins")
REGISTRY = PurePosixPath("/var/lib/kubelet/plugins_registry")
POD_UID = "6c0bbd34-94c3-4b0b-a6f0-7b9ae7a9a6b5"

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,14}[a-z0-9])?", fullmatch=True)
driver_names = st.lists(labels, min_size=1, max_size=4).map(".".join).filter(lambda name: len(name) <= 63)


def digest(text, size):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()


def test_without_a_pod_the_names_are_the_documented_ones():
    paths = plan_sockets("gpu.nvidia.com", PLUGINS, REGISTRY, None)
    assert (str(paths.registrar), str(paths.service)) == (
        "/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock",
        "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock",
    )


def test_with_a_pod_both_names_carry_its_uid():
    paths = plan_sockets("gpu.nvidia.com", PLUGINS, REGISTRY, POD_UID)
    assert (paths.registrar.name, paths.service.name) == (f"gpu.nvidia.com-{POD_UID}-reg.sock", f"dra-{POD_UID}.sock")


def test_a_longer_driver_name_shortens_the_uid():
    driver = "a" * 30 + ".example.com"
    paths = plan_sockets(driver, PLUGINS, REGISTRY, POD_UID)
    assert paths.registrar.name == f"{driver}-{digest(POD_UID, 8)}-reg.sock"


def test_the_longest_driver_name_is_hashed_too():
    driver = "a" * 63
    paths = plan_sockets(driver, PLUGINS, REGISTRY, POD_UID)
    assert paths.registrar.name == f"dra-{digest(driver + chr(0) + POD_UID, 16)}-reg.sock"


@given(driver=driver_names, pod_uid=st.none() | st.uuids().map(str))
@example(driver="a" * 63, pod_uid=POD_UID)
@example(driver="a" * 63, pod_uid=None)
def test_every_path_fits_into_a_socket_address(driver, pod_uid):
    paths = plan_sockets(driver, PLUGINS, REGISTRY, pod_uid)
    assert max(len(str(paths.registrar)), len(str(paths.service))) <= MAX_PATH_BYTES


@given(driver=driver_names, pods=st.lists(st.uuids().map(str), min_size=2, max_size=2, unique=True))
def test_two_pods_never_share_a_socket(driver, pods):
    first, second = (plan_sockets(driver, PLUGINS, REGISTRY, pod) for pod in pods)
    assert first.registrar != second.registrar
    assert first.service != second.service


@given(driver=driver_names, pod_uid=st.uuids().map(str))
def test_a_registrar_that_carries_its_driver_is_recognised(driver, pod_uid):
    name = plan_sockets(driver, PLUGINS, REGISTRY, pod_uid).registrar.name
    assert is_registrar_of(driver, name) == name.startswith(f"{driver}-")


@given(driver=driver_names, pod_uid=st.uuids().map(str))
def test_a_pods_service_socket_is_recognised(driver, pod_uid):
    assert is_service_of_a_pod(plan_sockets(driver, PLUGINS, REGISTRY, pod_uid).service.name)


@pytest.mark.parametrize(
    "name", ["gpu.nvidia.com-reg.sock", "gpu.nvidia.com-two-reg.sock", "gpu.nvidia.com--reg.sock", "other-reg.sock"]
)
def test_other_registrars_are_left_alone(name):
    assert not is_registrar_of("gpu.nvidia.com", name)


@pytest.mark.parametrize("driver", ["", "GPU", "gpu_nvidia", "../gpu", "a" * 64, "gpu.", "gpu/nvidia"])
def test_a_driver_name_that_no_kubelet_takes_is_refused(driver):
    with pytest.raises(StartError, match="DNS subdomain"):
        plan_sockets(driver, PLUGINS, REGISTRY, None)


@pytest.mark.parametrize("pod_uid", ["", "../x", "a b", "a" * 65])
def test_a_pod_uid_that_is_none_is_refused(pod_uid):
    with pytest.raises(StartError, match=r"metadata\.uid"):
        plan_sockets("gpu.nvidia.com", PLUGINS, REGISTRY, pod_uid)


def test_a_folder_too_deep_for_any_name_is_refused():
    with pytest.raises(StartError, match="shorter folder"):
        plan_sockets("gpu.nvidia.com", PLUGINS, PurePosixPath("/", "d" * 90), POD_UID)


def test_a_relative_folder_is_refused():
    with pytest.raises(StartError, match="not absolute"):
        plan_sockets("gpu.nvidia.com", PurePosixPath("plugins"), REGISTRY, None)
