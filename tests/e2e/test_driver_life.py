"""The GPU driver's life on a real node: NVML released for a reset or an upgrade, GPUs cordoned and drained."""

from __future__ import annotations

import json
import threading

import pytest
from e2e.harness.build import HarnessError
from e2e.harness.cluster import NODE
from e2e.harness.driver import list_devices
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from e2e.harness.simulator import Simulator
from e2e.harness.tesela_command import find_tesela
from tesela.edge.kube.port import DEVICE_TAINT_RULES, PODS, Json

GPUS = "h100-80gb*2"
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb")]))
WHOLE = render_template("whole", render_claim_spec([render_request("core", device_class="gpu.nvidia.com")]))
RELEASED = "gpu.nvidia.com/released"


def pod(name: str, template: str = "one") -> Json:
    return render_pod(name, templates={"gpu": template})


def release_gpu(node: Node, *arguments: str) -> str:
    """`tesela release-gpu`, as in the driver's pod."""
    folder = node.cluster.kubelet_folder / "plugins"
    return node.cluster.run([find_tesela(), "release-gpu", f"--plugins-dir={folder}", *arguments], timeout_s=150)


def gpu(node: Node, verb: str, *arguments: str) -> str:
    """`tesela gpu`, as an administrator."""
    kubeconfig = node.cluster.certificates.path("admin.kubeconfig")
    return node.cluster.run([find_tesela(), "gpu", verb, f"--kubeconfig={kubeconfig}", *arguments], timeout_s=120)


def count_registrations(node: Node) -> int:
    """How often the kubelet has registered the driver."""
    return node.cluster.processes["kubelet"].tail(9999, matching="Registered DRA plugin").count("\n")


def list_tainted(node: Node) -> set[str]:
    """Devices that are tainted for a release."""
    return {
        name
        for name, device in list_devices(node.cluster).items()
        if any(taint["key"] == RELEASED for taint in device.get("taints", []))
    }


def wait_tainted(node: Node, *, timeout_s: float = 20) -> None:
    wait_until(
        "every device is tainted", lambda: list_tainted(node) == set(list_devices(node.cluster)), timeout_s=timeout_s
    )


def wait_untainted(node: Node, *, timeout_s: float = 20) -> None:
    wait_until(
        "no device is tainted",
        lambda: list_devices(node.cluster) and not list_tainted(node),
        timeout_s=timeout_s,
    )


def test_a_driver_that_comes_late_at_boot_is_waited_for(node: Node, work: Namespace) -> None:
    before = set(list_devices(node.cluster))
    node.driver.stop()
    node.simulator.stop()
    starting = threading.Thread(target=node.driver.start)
    starting.start()
    log = node.driver.process.log
    wait_until("it waits", lambda: "waiting for the GPU driver" in log.read_text(), timeout_s=20)

    node.simulator = Simulator(node.cluster, GPUS)
    starting.join(40)
    work.apply(ONE, pod("afterwards"))
    work.wait_running("afterwards")

    assert set(list_devices(node.cluster)) == before


def test_a_gpu_is_reset_while_nvml_is_released_and_the_next_claim_works(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("steady"))
    work.wait_running("steady")
    registered = count_registrations(node)

    release_gpu(node, "--reason", "reset")
    wait_tainted(node)
    node.simulator.run("reset", "0", "--force")
    work.apply(pod("late"))
    work.wait_unschedulable("late")
    release_gpu(node, "--resume")
    wait_untainted(node)

    work.wait_running("steady", "late")
    assert (count_registrations(node), len(node.simulator.list_partitions())) == (registered, 1)


def test_a_claim_whose_partition_went_with_the_reset_says_so(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("steady"))
    work.wait_running("steady")

    release_gpu(node)
    node.simulator.run("reset", "0", "--force")
    release_gpu(node, "--resume")

    def conditions() -> dict[str, str]:
        devices = work.claim_of("steady", "gpu")["status"].get("devices", [])
        return {one["type"]: one["status"] for device in devices for one in device.get("conditions", [])}

    wait_until("the claim is unhealthy", lambda: conditions().get("Healthy") == "False", timeout_s=30)
    assert conditions()["Ready"] == "False"


def test_pods_that_end_meanwhile_are_given_back_afterwards(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("leaving"))
    work.wait_running("leaving")
    release_gpu(node)

    work.delete("leaving")
    wait_until(
        "an unprepare was turned away",
        lambda: "released for maintenance" in node.cluster.processes["kubelet"].tail(50, matching="leaving-gpu"),
        timeout_s=60,
    )
    release_gpu(node, "--resume")

    work.wait_gone("leaving", timeout_s=120)
    node.wait_clean()


def test_a_driver_that_restarts_while_nvml_is_released_keeps_it_closed(node: Node, work: Namespace) -> None:
    release_gpu(node)
    before = set(list_devices(node.cluster))
    node.driver.stop()
    node.driver.start()
    wait_tainted(node)
    shown = json.loads(release_gpu(node, "--status", "-o", "json"))

    release_gpu(node, "--resume")
    wait_untainted(node)
    work.apply(ONE, pod("afterwards"))
    work.wait_running("afterwards")

    assert (shown["nvmlOpen"], set(list_devices(node.cluster))) == (False, before)


def test_an_upgrade_while_nvml_is_released_shows_in_the_devices(node: Node, work: Namespace) -> None:
    release_gpu(node, "--reason", "upgrade")
    node.simulator.run("reload", "--driver", "590.44.01")

    release_gpu(node, "--resume")

    def versions() -> set[str]:
        return {one["attributes"]["driverVersion"]["version"] for one in list_devices(node.cluster).values()}

    wait_until("the devices show the new version", lambda: versions() == {"590.44.1"}, timeout_s=60)


def test_the_node_s_label_releases_nvml_too(node: Node, work: Namespace) -> None:
    node.cluster.kubectl("label", "node", NODE, "gpu.nvidia.com/release-gpu=true")
    wait_tainted(node, timeout_s=60)

    node.cluster.kubectl("label", "node", NODE, "gpu.nvidia.com/release-gpu-")

    wait_untainted(node, timeout_s=60)


def test_a_library_that_does_not_match_ends_the_process_with_a_sentence(node: Node, work: Namespace) -> None:
    node.simulator.run("fail", "*", "LIB_RM_VERSION_MISMATCH", "--forever")

    code = node.driver.process.wait(60)

    said = node.driver.process.tail(50, matching="does not match the loaded kernel module any more")
    node.simulator.run("release")
    node.driver.start()
    assert (code, len(said.splitlines())) == (1, 1)


def test_a_cordoned_gpu_gets_no_new_claim_until_it_is_uncordoned(node: Node, work: Namespace) -> None:
    work.apply(WHOLE)
    try:
        gpu(node, "cordon", "gpu-0", "--node", NODE)
        work.apply(pod("first", "whole"))
        work.wait_running("first")
        work.apply(pod("second", "whole"))
        work.wait_unschedulable("second")
    finally:
        gpu(node, "uncordon", "gpu-0", "--node", NODE)

    work.wait_running("second")
    assert (work.devices_of("first", "gpu"), work.devices_of("second", "gpu")) == (["gpu-1"], ["gpu-0"])


def test_a_drain_s_dry_run_counts_as_the_control_plane_does_and_changes_nothing(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("busy"))
    work.wait_running("busy")

    said = gpu(node, "drain", "gpu-0", "--node", NODE, "--dry-run")

    assert "1 pod would be evicted in 1 namespace if the effect was NoExecute." in said
    assert (node.cluster.kube.list(DEVICE_TAINT_RULES).items, "deletionTimestamp" in work.pod("busy")["metadata"]) == (
        (),
        False,
    )


def test_a_drain_without_yes_deletes_nothing(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("busy"))
    work.wait_running("busy")

    with pytest.raises(HarnessError, match=f"--yes to delete {work.name}/busy"):
        gpu(node, "drain", "gpu-0", "--node", NODE)

    assert "deletionTimestamp" not in work.pod("busy")["metadata"]


def test_a_drain_ends_the_pods_of_its_gpu_and_no_others(node: Node, work: Namespace) -> None:
    work.apply(ONE, WHOLE, pod("busy"))
    work.wait_running("busy")
    work.apply(pod("other", "whole"))
    work.wait_running("other")
    try:
        gpu(node, "drain", "gpu-0", "--node", NODE, "--yes")
        pods = node.cluster.kube.list(PODS, work.name).items
    finally:
        gpu(node, "uncordon", "gpu-0", "--node", NODE)

    # A pod that has ended gives its claim back a moment before its object goes.
    left = {one["metadata"]["name"] for one in pods if "deletionTimestamp" not in one["metadata"]}
    assert left == {"other"}
