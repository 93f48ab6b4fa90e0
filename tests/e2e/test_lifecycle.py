"""Failing, slow and hanging GPUs, a driver that is away, and what the kubelet and users make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from e2e.harness.driver import is_pool_complete, list_slices
from e2e.harness.node import Node
from e2e.harness.pods import (
    Namespace,
    render_claim,
    render_claim_spec,
    render_container,
    render_opaque,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2"
FAILED = "FailedPrepareDynamicResources"
CREATE, DESTROY = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb")]))
WHOLE = render_request("core", device_class="gpu.nvidia.com")


def pod(name: str, template: str = "one", **more: object) -> Json:
    return render_pod(name, templates={"gpu": template}, **more)


@pytest.fixture
def faulty(node: Node, work: Namespace) -> Iterator[Namespace]:
    """The test's namespace on a node whose faults end with the test."""
    yield work
    node.simulator.run("release")


def test_a_prepare_that_fails_once_is_tried_again(node: Node, faulty: Namespace) -> None:
    node.simulator.run("fail", CREATE, "UNKNOWN")
    faulty.apply(ONE, pod("patient"))
    faulty.wait_event("patient", FAILED, CREATE)

    faulty.wait_running("patient")

    assert len(node.simulator.list_partitions()) == 1


def test_a_prepare_that_hangs_keeps_the_pod_waiting_and_says_so(node: Node, faulty: Namespace) -> None:
    node.simulator.run("hang", CREATE)
    faulty.apply(ONE, pod("patient"))
    faulty.wait_event("patient", FAILED, CREATE)
    node.simulator.run("release")

    faulty.wait_running("patient", timeout_s=120)


def test_an_unprepare_that_fails_is_tried_until_it_succeeds(node: Node, faulty: Namespace) -> None:
    faulty.apply(ONE, pod("sticky"))
    faulty.wait_running("sticky")
    node.simulator.run("fail", DESTROY, "UNKNOWN", "--times", "2")

    faulty.end("sticky")

    node.wait_clean()


def test_a_prepare_is_tried_again_after_a_kubelet_s_restart(node: Node, faulty: Namespace) -> None:
    node.simulator.run("fail", CREATE, "UNKNOWN", "--forever")
    faulty.apply(ONE, pod("patient"))
    faulty.wait_event("patient", FAILED)
    node.cluster.stop_kubelet()
    node.simulator.run("release")

    node.cluster.start_kubelet()
    faulty.wait_running("patient")

    assert len(node.simulator.list_partitions()) == 1


def test_an_unprepare_is_tried_again_after_a_kubelet_s_restart(node: Node, faulty: Namespace) -> None:
    faulty.apply(ONE, pod("sticky"))
    faulty.wait_running("sticky")
    node.simulator.run("fail", DESTROY, "UNKNOWN", "--forever")
    faulty.delete("sticky")
    claim = f"{faulty.name}/sticky-gpu"  # another test has a pod of this name
    wait_until("the driver has failed", lambda: claim in node.driver.process.tail(matching=DESTROY), timeout_s=30)
    node.cluster.stop_kubelet()
    node.simulator.run("release")

    node.cluster.start_kubelet()
    faulty.wait_gone("sticky")

    node.wait_clean()


def test_a_pod_deleted_while_its_prepare_fails_leaves_nothing(node: Node, faulty: Namespace) -> None:
    node.simulator.run("fail", CREATE, "UNKNOWN", "--forever")
    faulty.apply(ONE, pod("hopeless"))
    faulty.wait_event("hopeless", FAILED)
    node.cluster.stop_kubelet()
    faulty.delete("hopeless", grace_s=0)
    node.simulator.run("release")

    node.cluster.start_kubelet()
    faulty.apply(pod("next"))
    faulty.wait_running("next")

    assert len(node.simulator.list_partitions()) == 1


def test_slices_vanish_with_the_driver_and_a_pod_waits_for_its_return(node: Node, work: Namespace) -> None:
    node.driver.stop()
    wait_until("the kubelet deletes the slices", lambda: not list_slices(node.cluster), timeout_s=60)
    work.apply(ONE, pod("patient"))
    work.wait_unschedulable("patient")

    node.driver.start()
    work.wait_running("patient")

    assert is_pool_complete(node.cluster)


def test_the_time_slice_of_a_class_or_claim_is_applied_to_the_gpu(node: Node, work: Namespace) -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    work.apply(
        render_template("slow", render_claim_spec([WHOLE], config=[render_opaque("GpuConfig", sharing=sharing)]))
    )
    work.apply(pod("slow", "slow"))
    work.wait_running("slow")

    uuid = work.environment("slow")["TESELA_GPU_CORE_UUIDS"]

    assert f"compute-policy -i {uuid} --set-timeslice 3" in node.simulator.nvidia_smi_log.read_text().splitlines()


def test_metadata_of_a_claim_lies_under_the_claim_s_name(node: Node, work: Namespace) -> None:
    work.apply(render_claim("given", render_claim_spec([render_request("core", profile="1g.10gb")])))
    work.apply(render_pod("reader", claims={"gpu": "given"}))
    work.wait_running("reader")

    folder = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/given/core"
    text = work.exec("reader", f"cat {folder}/gpu.nvidia.com-metadata.json")
    (request,) = json.JSONDecoder().raw_decode(text)[0]["requests"]

    assert [device["name"] for device in request["devices"]] == work.devices_of("reader", "gpu")


def test_metadata_of_another_request_is_not_shown(node: Node, work: Namespace) -> None:
    requests = [render_request(side, profile="1g.10gb") for side in ("left", "right")]
    containers = [render_container("main", claims=[{"name": "gpu", "request": "left"}])]
    work.apply(render_template("pair", render_claim_spec(requests)), pod("reader", "pair", containers=containers))
    work.wait_running("reader")

    shown = work.exec("reader", "cd /var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu && ls")

    assert shown.split() == ["left"]


def test_a_new_claim_joins_one_that_is_allocated_already(node: Node, work: Namespace) -> None:
    work.apply(render_claim("old", render_claim_spec([render_request("core", profile="1g.10gb")])), ONE)
    work.apply(render_pod("first", claims={"gpu": "old"}))
    work.wait_running("first")
    work.apply(render_pod("second", claims={"old": "old"}, templates={"new": "one"}))
    work.wait_running("second")

    environment = work.environment("second")
    told = {environment["TESELA_OLD_CORE_UUIDS"], environment["TESELA_NEW_CORE_UUIDS"]}

    assert told == {seen.uuid for seen in node.simulator.list_partitions()}


def test_an_extended_resource_and_a_claim_serve_one_pod(node: Node, work: Namespace) -> None:
    container = render_container("main", claims=["gpu"])
    for side in ("requests", "limits"):
        container["resources"].setdefault(side, {})["nvidia.com/gpu"] = "1"
    work.apply(ONE, pod("both", containers=[container]))
    work.wait_running("both")

    shown = work.exec("both", "ls /dev").split()

    assert {f"nvidia{node.simulator.get_minor(0)}", f"nvidia{node.simulator.get_minor(1)}"} <= set(shown)


def test_a_reboot_without_pods_leaves_a_node_that_serves(node: Node, work: Namespace) -> None:
    node.simulator.run("reboot", "--driver-only")
    work.apply(ONE, pod("afterwards"))

    work.wait_running("afterwards")

    assert len(node.simulator.list_partitions()) == 1
