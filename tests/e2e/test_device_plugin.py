"""A device plugin and claims that share one node: what the plugin gave to a pod, no claim gets as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.device_plugin import DevicePlugin
from e2e.harness.driver import list_devices
from e2e.harness.node import Node
from e2e.harness.pods import (
    Namespace,
    render_claim_spec,
    render_container,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import NODES

GPUS = "a30*2"
ARGUMENTS = ("--beside-device-plugin",)
SHARED = "nvidia.com/gpu.shared"
NOTICED_S = 60  # the driver asks twice a minute
WHOLE = render_template("whole", render_claim_spec([render_request("gpu", device_class="gpu.nvidia.com")]))


def list_tainted(node: Node) -> dict[str, list[str]]:
    """Values of the taint `foreign`, by device."""
    return {
        name: [taint["value"] for taint in device.get("taints", []) if taint["key"] == "gpu.nvidia.com/foreign"]
        for name, device in list_devices(node.cluster).items()
    }


@pytest.fixture(scope="module")
def plugin(cluster: Cluster, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevicePlugin]:
    """It offers GPU 0 twice, as with time slicing. Gone from the Node at the end, whose word the next driver takes."""
    uuid = next(iter(node.simulator.list_gpus()))
    scratch: Path = tmp_path_factory.mktemp("protocol")
    plugin = DevicePlugin(cluster, scratch, SHARED, f"{uuid}::0", f"{uuid}::1")
    yield plugin
    plugin.close()

    def is_withdrawn() -> bool:
        return bool(cluster.kube.get(NODES, NODE)["status"]["allocatable"][SHARED] == "0")

    wait_until("the Node tells that it went", is_withdrawn, timeout_s=NOTICED_S)


def test_a_claim_gets_no_gpu_that_a_device_plugin_gave_until_that_is_over(
    plugin: DevicePlugin, node: Node, work: Namespace
) -> None:
    container = render_container("main")
    for side in ("requests", "limits"):
        container["resources"].setdefault(side, {})[SHARED] = "1"
    work.apply(WHOLE, render_pod("trainer", containers=[container]))
    work.wait_running("trainer")
    given = {"gpu-0": [f"device-plugin-{work.name}-trainer"], "gpu-1": []}
    wait_until("gpu-0 is tainted", lambda: list_tainted(node) == given, timeout_s=NOTICED_S)

    work.apply(render_pod("claiming", templates={"gpu": "whole"}))
    work.wait_running("claiming")
    got = work.devices_of("claiming", "gpu")
    work.end("trainer")

    wait_until("gpu-0 is free", lambda: not any(list_tainted(node).values()), timeout_s=NOTICED_S)
    assert got == ["gpu-1"]
