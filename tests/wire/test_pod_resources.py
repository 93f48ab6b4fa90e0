"""What the kubelet tells of device plugins, over a real socket."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from pod_resources import FakePodResources
from tesela.core.device_plugins import PluginUse
from tesela.core.errors import TryAgain
from tesela.edge.kubelet.pod_resources import PodResources


@pytest.fixture
def folder():
    """With a path that a socket's address has room for."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def kubelet(folder):
    kubelet = FakePodResources(folder / "kubelet.sock")
    yield kubelet
    kubelet.stop()


@pytest.fixture
def asked(kubelet, folder):
    return PodResources(folder / "kubelet.sock")


def test_every_device_that_a_pod_has_is_told(kubelet, asked):
    kubelet.give("a", "nvidia.com/gpu", "GPU-1", "GPU-2")
    kubelet.give("b", "example.com/nic", "eth1")

    assert asked.list_plugin_uses() == (
        PluginUse(resource="nvidia.com/gpu", device_id="GPU-1", pod="team/a"),
        PluginUse(resource="nvidia.com/gpu", device_id="GPU-2", pod="team/a"),
        PluginUse(resource="example.com/nic", device_id="eth1", pod="team/b"),
    )


def test_what_a_claim_gives_is_left_out(kubelet, asked):
    kubelet.claim("a", "gpu-0")

    assert asked.list_plugin_uses() == ()


def test_a_kubelet_that_is_not_there_means_later(folder):
    with pytest.raises(TryAgain, match=r"the kubelet does not tell at .*none\.sock what its pods have: UNAVAILABLE"):
        PodResources(folder / "none.sock").list_plugin_uses()
