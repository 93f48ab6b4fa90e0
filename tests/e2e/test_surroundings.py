"""What is wrong around the driver on a real node: a device plugin for its GPUs, a driver of its name, wrong folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.device_plugin import DevicePlugin
from e2e.harness.driver import list_devices
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from namesake import Namesake
from tesela.edge.kube.port import EVENTS, NODES

GPUS = "a30*2"
GPU = "nvidia.com/gpu"
NOTICED_S = 60  # the driver looks twice a minute
OVER_S = NOTICED_S + 90  # a device plugin may be away for a minute
WHOLE = render_template("whole", render_claim_spec([render_request("gpu", device_class="gpu.nvidia.com")]))
READ_ONLY = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro tmpfs /var/run/cdi && exec "$@"', "sh"]


def list_free(node: Node) -> set[str]:
    """Devices that a device plugin taints no more."""
    keys = {
        name: {one["key"] for one in device.get("taints", [])} for name, device in list_devices(node.cluster).items()
    }
    return {name for name, found in keys.items() if "gpu.nvidia.com/foreign" not in found}


def list_reasons(cluster: Cluster) -> set[str]:
    return {f"{one['reason']} {one['type']}" for one in cluster.kube.list(EVENTS, "default").items}


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("protocol")


def test_while_a_device_plugin_offers_the_gpus_no_claim_gets_one(node: Node, work: Namespace, scratch: Path) -> None:
    with closing(DevicePlugin(node.cluster, scratch, GPU, *node.simulator.list_gpus())):
        wait_until("every device is tainted", lambda: not list_free(node), timeout_s=NOTICED_S)
        work.apply(WHOLE, render_pod("claiming", templates={"gpu": "whole"}))
        work.wait_unschedulable("claiming")
        wait_until("the Node tells", lambda: "DevicePluginOnNode Warning" in list_reasons(node.cluster), timeout_s=30)
    wait_until("nothing is tainted", lambda: len(list_free(node)) == len(list_devices(node.cluster)), timeout_s=OVER_S)

    work.wait_running("claiming")
    node_object = node.cluster.kube.get(NODES, NODE)
    assert node_object["status"]["allocatable"][GPU] == "0"


@pytest.fixture
def stopped(node: Node) -> Iterator[Node]:
    """The node without its driver, which runs again afterwards."""
    node.driver.stop()
    yield node
    if node.driver.process.alive:
        node.driver.stop()
    node.driver.start()


def test_a_driver_of_the_same_name_is_waited_for_until_it_goes(stopped: Node) -> None:
    with closing(Namesake(stopped.cluster.kubelet_folder / "plugins_registry")):
        stopped.driver.begin()
        process = stopped.driver.process
        wait_until("it says so", lambda: process.tail(matching="another driver of the name"), timeout_s=30)
        waiting = process.log.stat().st_size

    def is_registered() -> bool:
        return any("the kubelet registered gpu.nvidia.com" in line for line in process.read_since(waiting))

    wait_until("it serves", is_registered, timeout_s=60)


def test_a_kubelet_root_that_is_no_folder_ends_the_start_with_one_line(stopped: Node) -> None:
    stopped.driver.begin("--kubelet-root=/data/kubelet")

    code = stopped.driver.process.wait(30)

    line = (
        "tesela plugin: /data/kubelet/plugins_registry is no folder here: mount the kubelet's plugins_registry at its "
        "own path, and where the kubelet has another --root-dir, give it as --kubelet-root"
    )
    assert (code, stopped.driver.process.tail(1)) == (1, line)


def test_a_registry_that_no_kubelet_watches_is_told(stopped: Node) -> None:
    folder = stopped.cluster.sandbox.folder / "k"
    (folder / "plugins_registry").mkdir(parents=True)
    stopped.driver.begin(f"--kubelet-root={folder}")
    process = stopped.driver.process

    wait_until("it says so", lambda: process.tail(matching=f"no kubelet asks at {folder}"), timeout_s=NOTICED_S)


def test_a_read_only_folder_of_cdi_files_ends_the_start_with_one_line(stopped: Node) -> None:
    stopped.driver.begin(through=READ_ONLY)

    code = stopped.driver.process.wait(30)

    line = (
        "tesela plugin: cannot write into /var/run/cdi, the folder of CDI files, --cdi-dir: it is mounted read-only; "
        "mount the host's folder there, writable"
    )
    assert (code, stopped.driver.process.tail(1)) == (1, line)
