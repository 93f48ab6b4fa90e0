"""A fault of a GPU on a real cluster: what runs stays, what comes goes elsewhere, and a policy moves what runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness.driver import Driver, list_devices
from e2e.harness.identity import create_identity
from e2e.harness.node import Node
from e2e.harness.pods import (
    RUNNING_TIMEOUT_S,
    Namespace,
    render_claim_spec,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import PODS, Json

GPUS = "a30*2"
WHOLE = render_template("whole", render_claim_spec([render_request("gpu", device_class="gpu.nvidia.com")]))
MOVING = """\
version: 1
health:
  signals:
    - signal: ecc-uncorrected-volatile
      effect: NoExecute
"""


def pod(name: str) -> Json:
    return render_pod(name, templates={"gpu": "whole"})


def list_taints(node: Node, device: str) -> list[tuple[str, str, str]]:
    """Key, value and effect of the taints that a device is published with."""
    taints = list_devices(node.cluster)[device].get("taints", [])
    return [(taint["key"], taint["value"], taint["effect"]) for taint in taints]


def get_health(node: Node, device: str) -> str:
    """Its attribute."""
    return str(list_devices(node.cluster)[device]["attributes"]["health"]["string"])


def break_gpu(node: Node, index: int = 0) -> None:
    """An error that ECC cannot correct."""
    node.simulator.run("ecc", str(index), "--uncorrected", "1")
    wait_until("the fault is published", lambda: list_taints(node, f"gpu-{index}"), timeout_s=20)


def repair_gpu(node: Node, index: int = 0) -> None:
    """The reset that ends it."""
    node.simulator.run("reset", str(index))
    wait_until("the taint is gone", lambda: not list_taints(node, f"gpu-{index}"), timeout_s=30)


@pytest.fixture
def broken(node: Node, work: Namespace) -> Iterator[Node]:
    """GPU 0 has a fault, found while pod `first` runs on it; it is repaired at the end."""
    work.apply(WHOLE, pod("first"))
    work.wait_running("first")
    assert work.devices_of("first", "gpu") == ["gpu-0"]
    break_gpu(node)
    yield node
    work.clear()
    repair_gpu(node)


def test_an_ecc_fault_taints_its_gpu_and_keeps_it_published(broken: Node) -> None:
    taints = list_taints(broken, "gpu-0")

    assert taints == [("gpu.nvidia.com/ecc", "uncorrected-volatile", "NoSchedule")]
    assert (get_health(broken, "gpu-0"), get_health(broken, "gpu-1")) == ("unhealthy", "healthy")


def test_a_pod_stays_on_a_gpu_with_a_fault_and_the_next_gets_another(broken: Node, work: Namespace) -> None:
    work.apply(pod("second"))

    work.wait_running("second")

    assert work.devices_of("second", "gpu") == ["gpu-1"]
    work.wait_running("first")


def test_a_fault_is_kept_through_a_restart_of_the_driver(broken: Node) -> None:
    broken.driver.kill()

    broken.driver.start()
    broken.wait_published()

    assert get_health(broken, "gpu-0") == "unhealthy"


def test_a_gpu_is_used_again_after_its_reset(node: Node, work: Namespace) -> None:
    break_gpu(node)
    repair_gpu(node)

    work.apply(WHOLE, pod("after"))
    work.wait_running("after")

    assert (work.devices_of("after", "gpu"), get_health(node, "gpu-0")) == (["gpu-0"], "healthy")


@pytest.fixture
def moving(node: Node, work: Namespace) -> Iterator[Node]:
    """A driver whose policy gives the fault NoExecute, in place of the module's own."""
    path = node.cluster.sandbox.folder / "policy.yaml"
    path.write_text(MOVING)
    node.driver.stop()
    identity = create_identity(node.cluster, "moving")
    driver = Driver(node.cluster, node.simulator, identity, f"--policy={path}")
    node.wait_published()
    yield node
    node.cluster.kubectl("-n", work.name, "delete", "replicaset", "--all")  # it would make new pods for ever
    work.clear()
    repair_gpu(node)
    driver.stop()
    node.driver.start()
    node.wait_published()


def test_a_policy_of_noexecute_moves_a_pod(moving: Node, work: Namespace) -> None:
    template = pod("x")["spec"] | {"restartPolicy": "Always"}
    labels = {"app": "server"}
    work.apply(
        WHOLE,
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "server"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": template},
            },
        },
    )
    (before,) = wait_for_server(work)

    moving.simulator.run("ecc", "0", "--uncorrected", "1")

    (after,) = wait_for_server(work, besides=before)
    assert (work.devices_of(after, "gpu"), before == after) == (["gpu-1"], False)


def wait_for_server(work: Namespace, besides: str = "") -> list[str]:
    """Until one pod of the ReplicaSet runs that is not `besides`; its name."""

    def names() -> list[str]:
        pods = work.kube.list(PODS, work.name).items
        running = [one for one in pods if one["status"].get("phase") == "Running"]
        alive = [one["metadata"]["name"] for one in running if "deletionTimestamp" not in one["metadata"]]
        return [name for name in alive if name != besides]

    wait_until("a pod of the set runs", names, timeout_s=RUNNING_TIMEOUT_S)
    return names()
