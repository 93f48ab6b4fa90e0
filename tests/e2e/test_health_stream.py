"""The health of devices in the status of pods, told by the real kubelet: faults, recovery, a driver that is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.driver import is_pool_complete, list_devices
from e2e.harness.node import Node
from e2e.harness.other_driver import DEVICE, OtherDriver
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2"
UUIDS = "TESELA_GPU_CORE_UUIDS"
WHOLE = render_template("whole", render_claim_spec([render_request("core", device_class="gpu.nvidia.com")]))
SMALL = render_template("small", render_claim_spec([render_request("core", profile="1g.10gb")]))


def pod(name: str, template: str) -> Json:
    return render_pod(name, templates={"gpu": template})


def read_health(work: Namespace, name: str) -> list[Json]:
    """What the pod's first container shows of its devices."""
    (status,) = work.pod(name)["status"]["containerStatuses"]
    return [one for claim in status.get("allocatedResourcesStatus", []) for one in claim["resources"]]


def wait_for_health(work: Namespace, name: str, health: str, *, timeout_s: float = 30) -> str:
    """Until the pod's only device shows this health; its message."""
    wait_until(
        f"pod {name} shows {health}",
        lambda: [one["health"] for one in read_health(work, name)] == [health],
        timeout_s=timeout_s,
    )
    return str(read_health(work, name)[0].get("message", ""))


def is_well(node: Node) -> bool:
    """Whether the whole pool is published without a taint: the driver sees a reset up to ten seconds later."""
    return is_pool_complete(node.cluster) and not any(one.get("taints") for one in list_devices(node.cluster).values())


@pytest.fixture
def running(node: Node, work: Namespace) -> Iterator[str]:
    """The UUID of the whole GPU of a pod `app` that shows it as healthy; every GPU is reset at the end."""
    work.apply(WHOLE, pod("app", "whole"))
    work.wait_running("app")
    wait_for_health(work, "app", "Healthy")
    yield work.environment("app")[UUIDS]
    for uuid in node.simulator.list_gpus():
        node.simulator.run("reset", uuid)


def test_a_pod_shows_that_its_gpu_fell_ill_and_why_and_that_it_recovered(
    node: Node, work: Namespace, running: str
) -> None:
    node.simulator.run("ecc", running, "--uncorrected", "1", "--volatile-only")
    message = wait_for_health(work, "app", "Unhealthy")
    node.simulator.run("reset", running)
    recovered = wait_for_health(work, "app", "Healthy", timeout_s=60)

    assert ("ECC could not correct" in message, recovered) == (True, "")


def test_a_degraded_gpu_is_healthy_and_says_what_ails_it(node: Node, work: Namespace, running: str) -> None:
    node.simulator.run("remap", running, "--pending")

    wait_until("the pod shows a message", lambda: read_health(work, "app")[0].get("message"), timeout_s=30)
    (shown,) = read_health(work, "app")

    assert (shown["health"], shown["message"].split(",")[0]) == ("Healthy", "degraded")


def test_a_fault_of_the_gpu_shows_on_the_pod_of_a_partition(node: Node, work: Namespace) -> None:
    work.apply(SMALL, pod("app", "small"))
    work.wait_running("app")
    wait_for_health(work, "app", "Healthy")
    (partition,) = node.simulator.list_partitions()

    node.simulator.run("ecc", str(partition.gpu), "--uncorrected", "1", "--volatile-only")
    message = wait_for_health(work, "app", "Unhealthy")
    work.end("app")
    node.simulator.run("reset", str(partition.gpu))

    assert "ECC could not correct" in message


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_health_is_unknown_while_the_driver_is_away_and_back_after_its_restart(
    node: Node, work: Namespace, running: str, end: str
) -> None:
    getattr(node.driver, end)()
    wait_for_health(work, "app", "Unknown", timeout_s=120)

    node.driver.start()

    assert wait_for_health(work, "app", "Healthy") == ""


def test_a_fault_outlives_a_restart_of_the_driver(node: Node, work: Namespace, running: str) -> None:
    node.simulator.run("ecc", running, "--uncorrected", "1", "--volatile-only")
    before = wait_for_health(work, "app", "Unhealthy")
    node.driver.kill()
    wait_for_health(work, "app", "Unknown", timeout_s=120)

    node.driver.start()

    assert wait_for_health(work, "app", "Unhealthy") == before


def test_health_is_told_again_after_a_restart_of_the_kubelet(node: Node, work: Namespace, running: str) -> None:
    node.cluster.stop_kubelet()
    node.simulator.run("ecc", running, "--uncorrected", "1", "--volatile-only")

    node.cluster.start_kubelet()

    assert "ECC could not correct" in wait_for_health(work, "app", "Unhealthy", timeout_s=90)


def test_claims_are_prepared_while_health_changes_all_the_time(node: Node, work: Namespace) -> None:
    wait_until("what the tests before broke is well", lambda: is_well(node), timeout_s=60)
    work.apply(SMALL)
    names = [f"pod-{number}" for number in range(6)]
    for number, name in enumerate(names):
        work.apply(pod(name, "small"))
        # on the other GPU, which is the only one that loses its free devices by it
        node.simulator.run("ecc", "1", "--uncorrected", str(number + 1), "--volatile-only")
        node.simulator.run("reset", "1")
    work.wait_running(*names)

    failed = [event["message"] for event in work.list_events() if event["reason"].startswith("Failed")]

    assert failed == []


@pytest.fixture(params=["v1", "v1alpha1"])
def other(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[OtherDriver]:
    """A driver that promises this version alone."""
    driver = OtherDriver(cluster, f"{request.param}.example.com", f"{request.param}.DRAResourceHealth")
    yield driver
    driver.close()


def test_the_kubelet_follows_a_driver_that_promises_one_version(other: OtherDriver, namespace: Namespace) -> None:
    namespace.apply(render_template("other", render_claim_spec([render_request("core", device_class=other.name)])))
    namespace.apply(pod("app", "other"))
    namespace.wait_running("app")
    seen = [wait_for_health(namespace, "app", "Healthy")]
    for healthy, word in ((False, "Unhealthy"), (None, "Unknown"), (True, "Healthy")):
        other.tell(healthy=healthy, message=f"now {word}")
        seen.append(wait_for_health(namespace, "app", word))
    (shown,) = read_health(namespace, "app")
    namespace.clear()

    assert seen == ["well", "now Unhealthy", "now Unknown", "now Healthy"]
    assert shown["resourceID"] == f"{other.name}/{NODE}/{DEVICE}"
