"""What befalls a node while claims run: boots, a runtime that restarts, an administrator's hand, GPUs that get lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness.boot import reboot
from e2e.harness.driver import list_cdi_files, list_devices
from e2e.harness.node import Node
from e2e.harness.pods import (
    LIST_DEVICE_NODES,
    Namespace,
    render_claim_spec,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2,shift-minors"
UUIDS = "TESELA_GPU_CORE_UUIDS"
ON_GPU_0 = 'device.attributes["gpu.nvidia.com"].index == 0'
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb")]))
FIRST = render_template("first", render_claim_spec([render_request("core", profile="1g.10gb", selector=ON_GPU_0)]))
WHOLE = render_template("whole", render_claim_spec([render_request("core", device_class="gpu.nvidia.com")]))


def pod(name: str, template: str = "one", *, restart: str = "Never") -> Json:
    manifest = render_pod(name, templates={"gpu": template})
    manifest["spec"]["restartPolicy"] = restart
    return manifest


def list_uuids(node: Node) -> set[str]:
    return {seen.uuid for seen in node.simulator.list_partitions()}


def read_conditions(work: Namespace, name: str) -> dict[str, str]:
    """Type and status of what the driver says of the pod's device."""
    devices = work.claim_of(name, "gpu")["status"].get("devices", [])
    return {one["type"]: one["status"] for device in devices for one in device.get("conditions", [])}


def list_tainted(node: Node) -> set[str]:
    """GPUs that a taint keeps new claims from."""
    return {name.split("-mig-")[0] for name, one in list_devices(node.cluster).items() if one.get("taints")}


# Boots


@pytest.fixture
def booted(node: Node, work: Namespace) -> str:
    """Pods `part` and `whole` have started again after a boot; the UUID that `part` had before it."""
    work.apply(ONE, WHOLE, pod("part", restart="Always"))
    work.wait_running("part")
    work.apply(pod("whole", "whole", restart="Always"))
    work.wait_running("whole")
    before = work.environment("part")[UUIDS]
    reboot(node)
    for name in ("part", "whole"):
        work.wait_restarted(name)
        work.wait_running(name)
    return before


def test_pods_that_start_again_after_a_boot_have_devices_that_live(node: Node, work: Namespace, booted: str) -> None:
    part, whole = (work.environment(name)[UUIDS] for name in ("part", "whole"))

    assert ({part}, part == booted, whole in node.simulator.list_gpus()) == (list_uuids(node), False, True)


def test_pods_that_start_again_after_a_boot_see_the_device_nodes_of_today(
    node: Node, work: Namespace, booted: str
) -> None:
    shown = {name: set(work.exec(name, LIST_DEVICE_NODES).split()) for name in ("part", "whole")}

    (partition,) = node.simulator.list_partitions()
    gpu = node.simulator.list_gpus().index(work.environment("whole")[UUIDS])
    whole = node.simulator.list_device_nodes() | {f"nvidia{node.simulator.get_minor(gpu)}"}
    assert shown == {"part": node.simulator.list_device_nodes(partition), "whole": whole}


def test_pods_that_end_with_a_boot_leave_nothing(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("a"), pod("b"))
    work.wait_running("a", "b")

    reboot(node)

    node.wait_clean(timeout_s=60)


# The container runtime


def test_a_partition_outlives_a_restart_of_containerd_and_the_next_is_made_after_it(
    node: Node, work: Namespace
) -> None:
    work.apply(ONE, pod("steady"))
    work.wait_running("steady")
    uuid = work.environment("steady")[UUIDS]
    node.cluster.stop_containerd()
    work.apply(pod("early"))

    node.cluster.start_containerd()
    work.hurry("early")
    work.wait_running("early")

    assert list_uuids(node) == {uuid, work.environment("early")[UUIDS]}


def test_a_pod_that_ends_while_containerd_is_down_is_given_back_afterwards(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("leaving"))
    work.wait_running("leaving")
    node.cluster.stop_containerd()
    work.delete("leaving")

    node.cluster.start_containerd()
    work.wait_gone("leaving")

    node.wait_clean()


# An administrator


@pytest.fixture
def torn(node: Node, work: Namespace) -> str:
    """A pod whose partition was destroyed by hand while it runs."""
    work.apply(ONE, pod("torn"))
    work.wait_running("torn")
    node.simulator.destroy_partition(node.find_partition(work.environment("torn")[UUIDS]))
    return "torn"


def test_a_claim_whose_partition_was_destroyed_by_hand_says_so(node: Node, work: Namespace, torn: str) -> None:
    wait_until("its status tells", lambda: read_conditions(work, torn).get("Ready") == "False", timeout_s=60)

    assert list_cdi_files(node.cluster) == []


def test_a_claim_whose_partition_was_destroyed_by_hand_ends_and_its_place_is_used_again(
    node: Node, work: Namespace, torn: str
) -> None:
    device = work.devices_of(torn, "gpu")
    work.end(torn)
    work.apply(pod("next"))
    work.wait_running("next")

    assert (work.devices_of("next", "gpu"), list_uuids(node)) == (device, {work.environment("next")[UUIDS]})


def test_a_whole_gpu_is_given_although_its_mig_mode_was_switched_on_by_hand(node: Node, work: Namespace) -> None:
    for gpu in range(2):
        node.simulator.set_mig_mode(gpu, on=True)
    work.apply(WHOLE, pod("whole", "whole"))
    work.wait_running("whole")
    gpu = node.simulator.list_gpus().index(work.environment("whole")[UUIDS])

    assert not node.simulator.get_mig_modes()[gpu]


# GPUs that get lost


@pytest.fixture
def lost(node: Node, work: Namespace) -> Iterator[Node]:
    """The node; at the end, with no pod left, GPU 0 is there again and the driver has seen it."""
    yield node
    node.simulator.run("release")
    work.clear()
    node.simulator.run("reset", "0", "--force")
    wait_until("no device is tainted", lambda: not list_tainted(node), timeout_s=60)


def test_a_prepare_whose_gpu_gets_lost_is_done_when_it_is_back(lost: Node, work: Namespace) -> None:
    create = "nvmlDeviceCreateGpuInstanceWithPlacement"
    lost.simulator.run("hang", create)
    work.apply(FIRST, pod("caught", "first"))
    wait_until("it is in the call", lambda: (create, "hung") in lost.simulator.list_calls(), timeout_s=30)
    lost.simulator.run("lose", "0")
    lost.simulator.run("release")
    said = work.wait_event("caught", "FailedPrepareDynamicResources")
    wait_until("the GPU is tainted", lambda: list_tainted(lost) == {"gpu-0"}, timeout_s=30)

    lost.simulator.run("reset", "0")
    wait_until("the GPU is there again", lambda: not list_tainted(lost), timeout_s=30)
    work.hurry("caught")
    work.wait_running("caught")

    assert ("caught-gpu" in said, list_uuids(lost)) == (True, {work.environment("caught")[UUIDS]})


def test_a_pod_ends_although_its_gpu_is_lost_and_the_next_gets_another(lost: Node, work: Namespace) -> None:
    work.apply(ONE, pod("caught"))
    work.wait_running("caught")
    assert work.devices_of("caught", "gpu")[0].startswith("gpu-0")
    lost.simulator.run("lose", "0")
    wait_until("the GPU is tainted", lambda: list_tainted(lost) == {"gpu-0"}, timeout_s=30)

    work.end("caught")
    work.apply(pod("next"))
    work.wait_running("next")

    assert work.devices_of("next", "gpu")[0].startswith("gpu-1")
