"""Crashes and restarts of the driver, the kubelet and pods: nothing is lost, given twice or left behind."""

from __future__ import annotations

import time

from e2e.harness.driver import Driver, is_pool_complete, list_cdi_files, list_slices
from e2e.harness.identity import create_identity
from e2e.harness.node import Node
from e2e.harness.pods import SLEEP, Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2"
UUIDS = "TESELA_GPU_CORE_UUIDS"
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb")]))
LARGEST = render_template(
    "largest",
    render_claim_spec(
        [
            render_request(
                "core", profile="7g.80gb", selector='device.attributes["gpu.nvidia.com"].index == 0'
            )
        ]
    ),
)  # fmt: skip


def pod(name: str, template: str = "one", **more: object) -> Json:
    return render_pod(name, templates={"gpu": template}, **more)


def slice_uids(node: Node) -> list[str]:
    return [one["metadata"]["uid"] for one in list_slices(node.cluster)]


def test_pods_outlive_a_killed_driver_and_leave_nothing_after_its_restart(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("a"), pod("b"))
    work.wait_running("a", "b")
    node.driver.kill()

    node.driver.start()
    work.end("a", "b")

    node.wait_clean()


def test_pods_that_end_while_the_driver_is_dead_are_tidied_up_after_its_restart(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("a"), pod("b"))
    work.wait_running("a", "b")
    node.driver.kill()
    work.delete_in_vain("a", "b")

    node.driver.start()
    work.wait_gone("a", "b")

    node.wait_clean()


def test_a_pod_that_came_while_the_driver_was_dead_runs_after_its_restart(node: Node, work: Namespace) -> None:
    node.driver.kill()
    work.apply(ONE, pod("late"))
    work.wait_event("late", "FailedPrepareDynamicResources")

    node.driver.start()
    work.wait_running("late")

    assert len(node.simulator.list_partitions()) == 1


def test_slices_survive_a_quick_restart_of_the_driver_unchanged(node: Node, work: Namespace) -> None:
    before = list_slices(node.cluster)

    node.driver.stop()
    node.driver.start()
    node.wait_published()

    assert list_slices(node.cluster) == before


def test_slices_are_back_within_seconds_of_a_kubelet_s_restart(node: Node, work: Namespace) -> None:
    before = slice_uids(node)
    node.cluster.stop_kubelet()

    node.cluster.start_kubelet()
    wait_until("the kubelet has deleted the slices", lambda: not set(before) & set(slice_uids(node)), timeout_s=30)
    began = time.monotonic()
    wait_until("the pool is complete again", lambda: is_pool_complete(node.cluster), timeout_s=30)

    assert time.monotonic() - began < 5


def test_a_partition_outlives_a_kubelet_s_restart_and_ends_with_its_pod(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("steady"))
    work.wait_running("steady")
    uuid = work.environment("steady")[UUIDS]
    node.cluster.stop_kubelet()

    node.cluster.start_kubelet()
    node.cluster.wait_node_ready()

    assert [seen.uuid for seen in node.simulator.list_partitions()] == [uuid]


def test_a_pod_created_while_the_kubelet_is_down_runs_afterwards(node: Node, work: Namespace) -> None:
    node.cluster.stop_kubelet()
    work.apply(ONE, pod("early"))

    node.cluster.start_kubelet()
    node.wait_published()
    work.wait_running("early")

    assert len(node.simulator.list_partitions()) == 1


def test_a_partition_is_never_in_two_containers_although_its_pod_was_deleted_by_force(
    node: Node, work: Namespace
) -> None:
    beats = "/run/heartbeats"
    node.cluster.run(["mkdir", "-p", beats])

    def beating(name: str) -> Json:
        beat = f'trap "" TERM; while :; do echo {name} >> /beats/log; sleep 0.05; done'
        manifest = pod(name, "largest", script=beat)
        manifest["spec"]["volumes"] = [{"name": "beats", "hostPath": {"path": beats}}]
        manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "beats", "mountPath": "/beats"}]
        return manifest

    work.apply(LARGEST, beating("old"))
    work.wait_running("old")
    node.cluster.stop_kubelet()
    work.delete("old", grace_s=0)
    work.wait_gone("old")
    work.apply(beating("new"))
    node.cluster.start_kubelet()
    work.wait_running("new", timeout_s=120)

    def read_beats() -> list[str]:
        return node.cluster.run(["cat", f"{beats}/log"]).split()

    wait_until("the new pod's heart beats", lambda: "new" in read_beats(), timeout_s=30)
    lines = read_beats()
    assert "old" not in lines[lines.index("new") :]


def test_a_cdi_file_that_vanishes_is_written_again(node: Node, work: Namespace) -> None:
    work.apply(ONE, pod("steady"))
    work.wait_running("steady")
    contents = {path: path.read_text() for path in list_cdi_files(node.cluster)}

    for path in contents:
        path.unlink()

    wait_until("the files are back", lambda: list_cdi_files(node.cluster) == sorted(contents), timeout_s=30)
    assert {path: path.read_text() for path in list_cdi_files(node.cluster)} == contents


def test_a_slice_deleted_by_hand_comes_back(node: Node, work: Namespace) -> None:
    victim = list_slices(node.cluster)[-1]["metadata"]

    node.cluster.kubectl("delete", "resourceslice", victim["name"])

    wait_until("a new slice stands for it", lambda: is_pool_complete(node.cluster), timeout_s=10)


def test_the_old_driver_serves_on_after_a_successor_that_dies(node: Node, work: Namespace) -> None:
    successor = Driver(node.cluster, node.simulator, create_identity(node.cluster, "doomed"))
    successor.kill()
    work.apply(ONE, pod("served"))

    work.wait_running("served")

    assert "served-gpu" in node.driver.process.tail(5, matching="prepared")


def test_two_drivers_overlap_for_a_minute_without_a_failed_prepare(node: Node, work: Namespace) -> None:
    before = list_slices(node.cluster)
    work.apply(ONE)
    successor = Driver(node.cluster, node.simulator, create_identity(node.cluster, "successor"))
    over = time.monotonic() + 60
    names = [f"pod-{number}" for number in range(200)]
    while time.monotonic() < over:
        name = names.pop(0)
        work.apply(pod(name))
        work.wait_running(name)
        work.delete(name)
    node.driver.stop()
    node.driver = successor
    work.apply(pod("afterwards", script=SLEEP))
    work.wait_running("afterwards")

    refused = [event["message"] for event in work.list_events() if "NodePrepareResources" in event["message"]]
    assert (refused, list_slices(node.cluster)) == ([], before)
