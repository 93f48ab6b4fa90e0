"""A node moves from NVIDIA's driver to ours while its pods run: nothing restarts or is given twice, all goes back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from e2e.harness.cluster import NODE
from e2e.harness.driver import DRIVER, list_cdi_files, list_records
from e2e.harness.former_driver import hand_over
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
from e2e.harness.tesela_command import find_tesela
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2"
PART = render_template("part", render_claim_spec([render_request("core", profile="3g.40gb")]))
WHOLE = render_template("whole", render_claim_spec([render_request("core", device_class="gpu.nvidia.com")]))


def pod(name: str, template: str) -> Json:
    rendered = render_pod(name, templates={"gpu": template})
    rendered["spec"]["restartPolicy"] = "Always"
    return rendered


@pytest.fixture
def moved(node: Node, work: Namespace) -> Iterator[Namespace]:
    """A pod with a partition and one with a whole GPU, which NVIDIA's driver prepared; it has ended."""
    work.apply(PART, WHOLE, pod("whole", "whole"), pod("part", "part"))
    work.wait_running("whole", "part")
    hand_over(node)
    yield work
    if not node.driver.process.alive:
        node.driver.start()


def read_claims(node: Node) -> list[Json]:
    command = [find_tesela(), "adoption", "-o", "json"]
    return list(json.loads(node.cluster.run(command))["claims"])


def test_pods_run_on_and_their_claims_are_ours(node: Node, moved: Namespace) -> None:
    before = [moved.get_container_id(name) for name in ("whole", "part")]

    node.driver.start()

    records = [
        (body["record"]["adopted"], body["record"]["claim"]["name"]) for body in list_records(node.cluster).values()
    ]
    names = [moved.claim_of(name, "gpu")["metadata"]["name"] for name in ("whole", "part")]
    after = [moved.get_container_id(name) for name in ("whole", "part")]
    assert (sorted(records), after) == (sorted((True, name) for name in names), before)


def test_a_container_that_starts_again_finds_what_nvidia_s_file_gives(node: Node, moved: Namespace) -> None:
    node.driver.start()
    nodes = moved.exec("part", LIST_DEVICE_NODES)

    node.cluster.kill_container(moved.get_container_id("part"))
    moved.wait_restarted("part")
    moved.wait_running("part")

    assert (moved.environment("part")["WROTE_IT"], moved.exec("part", LIST_DEVICE_NODES)) == ("nvidia", nodes)


def test_what_they_hold_is_given_to_nobody_else_and_the_rest_is(node: Node, moved: Namespace) -> None:
    node.driver.start()
    node.wait_published()

    moved.apply(pod("next", "part"))
    moved.wait_running("next")

    assert moved.devices_of("next", "gpu") != moved.devices_of("part", "gpu")
    assert len(node.simulator.list_partitions()) == 2


def test_their_partition_goes_with_its_pod_and_so_does_their_cdi_file(node: Node, moved: Namespace) -> None:
    node.driver.start()

    moved.end("part", "whole")

    node.wait_clean()
    assert list_cdi_files(node.cluster) == []


def test_a_pod_that_ended_while_no_driver_served_gives_its_partition_back(node: Node, moved: Namespace) -> None:
    moved.delete_in_vain("part")

    node.driver.start()
    moved.wait_gone("part")

    wait_until("its partition is gone", lambda: not node.simulator.list_partitions(), timeout_s=30)


def test_a_partition_that_was_there_before_stays_and_is_fenced(node: Node, moved: Namespace) -> None:
    (partition,) = node.simulator.list_partitions()
    node.driver.arguments = ("--adopted-partitions=static",)
    try:
        node.driver.start()
    finally:
        node.driver.arguments = ()

    moved.end("part")

    left = node.simulator.list_partitions()
    node.simulator.destroy_partition(partition)
    assert left == [partition]


def test_the_kubelet_s_restart_changes_nothing(node: Node, moved: Namespace) -> None:
    node.driver.start()
    before = moved.get_container_id("part")

    node.cluster.stop_kubelet()
    node.cluster.start_kubelet()
    node.cluster.wait_node_ready()
    moved.apply(pod("next", "part"))
    moved.wait_running("next")

    suffixes = sorted(path.suffix for path in list_cdi_files(node.cluster))
    assert (moved.get_container_id("part"), suffixes) == (before, [".json", ".yaml", ".yaml"])


def test_the_command_looks_ahead_and_changes_nothing(node: Node, moved: Namespace) -> None:
    state_dir = node.cluster.kubelet_folder / "plugins" / DRIVER
    before = sorted(path.name for path in state_dir.iterdir())
    host = node.simulator.host
    environment = [f"{name}={value}" for name, value in node.simulator.client_environment.items()]
    roots = [f"--proc-root={host / 'proc'}", f"--sys-root={host / 'sys'}", "--node-name", NODE]
    command = ["env", *environment, find_tesela(), "adoption", "-o", "json", *roots]

    shown = json.loads(node.cluster.run([*command, f"--kubeconfig={node.driver.identity.kubeconfig}"]))

    names = {moved.claim_of(name, "gpu")["metadata"]["name"] for name in ("whole", "part")}
    after = sorted(path.name for path in state_dir.iterdir())
    assert ({(one["fate"], one["name"]) for one in shown["claims"]}, after) == (
        {("adopted", name) for name in names},
        before,
    )


def test_the_command_tells_what_was_taken_over(node: Node, moved: Namespace) -> None:
    node.driver.start()

    claims = read_claims(node)

    kept = sorted(path.name for path in (node.cluster.kubelet_folder / "plugins" / DRIVER).glob("nvidia-*"))
    assert ([one["fate"] for one in claims], kept) == (["adopted"] * 2, ["nvidia-checkpoint.adopted.1.json"])
