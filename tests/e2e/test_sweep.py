"""The driver sweeps its node: what others made is fenced and shown, who holds what is named, what is left is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from e2e.harness.driver import DRIVER, list_devices
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from e2e.harness.tesela_command import find_tesela
from tesela.edge.kube.port import EVENTS, RESOURCE_CLAIMS, Json

GPUS = "h100-80gb*2"
FOREIGN = "gpu.nvidia.com/foreign"
TRAINER = "4711"
ON_GPU_0 = 'device.attributes["gpu.nvidia.com"].index == 0'
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb", selector=ON_GPU_0)]))


def pod(name: str) -> Json:
    return render_pod(name, templates={"gpu": "one"})


def read_sweep(node: Node) -> Json:
    """The report of a sweep that began after this call: a driver sweeps at its start."""
    node.driver.stop()  # first: its own sweep may be under way
    (node.cluster.kubelet_folder / "plugins" / DRIVER / "sweep.json").unlink(missing_ok=True)
    node.driver.start()
    folder = node.cluster.kubelet_folder / "plugins"
    wait_until("the driver has swept", (folder / DRIVER / "sweep.json").exists, timeout_s=30)
    report: Json = json.loads(node.cluster.run([find_tesela(), "sweep", "-o", "json", "--plugins-dir", folder]))
    return report


def list_fenced(node: Node) -> set[str]:
    devices = list_devices(node.cluster)
    return {name for name, one in devices.items() if FOREIGN in {taint["key"] for taint in one.get("taints", ())}}


@pytest.fixture
def administrators(node: Node, work: Namespace) -> Iterator[int]:
    """The id of a GPU instance of 4g.40gb that an administrator made on GPU 0, without compute instance."""
    node.simulator.set_mig_mode(0, on=True)
    gi_id = node.simulator.create_gpu_instance(0, "4g.40gb", 0)
    yield gi_id
    node.simulator.destroy_gpu_instance(0, gi_id)


def test_an_administrators_instance_is_shown_fenced_and_left(node: Node, work: Namespace, administrators: int) -> None:
    report = read_sweep(node)
    wait_until("its neighbours are fenced", lambda: list_fenced(node), timeout_s=40)
    work.apply(ONE, pod("beside"))
    work.wait_running("beside")
    made = next(seen for seen in node.simulator.list_partitions() if seen.gi_id == administrators)
    beside = next(seen for seen in node.simulator.list_partitions() if seen.complete)

    shown = [(one["kind"], one["outcome"]) for one in report["found"]]

    assert (shown, made.complete, beside.start >= 4, "gpu-0" in list_fenced(node), "gpu-1" in list_fenced(node)) == (
        [("bare-instance", "reported")],
        False,
        True,
        True,
        False,
    )


@pytest.fixture
def held(node: Node, work: Namespace) -> Iterator[str]:
    """A pod in whose partition a process runs that outlives it."""
    work.apply(ONE, pod("held"))
    work.wait_running("held")
    (seen,) = node.simulator.list_partitions()
    place = ("--gi", str(seen.gi_id), "--ci", str(seen.ci_id))
    node.simulator.run("busy", "0", TRAINER, *place, "--name", "trainer")
    yield "held"
    if TRAINER in node.simulator.run("status"):
        node.simulator.run("idle", "0", TRAINER)


def list_claim_uids(node: Node, work: Namespace) -> set[str]:
    return {one["metadata"]["uid"] for one in node.cluster.kube.list(RESOURCE_CLAIMS, work.name).items}


def list_in_use(node: Node) -> list[str]:
    events = node.cluster.kube.list(EVENTS, "default").items
    return [event["note"] for event in events if event["reason"] == "PartitionInUse"]


def test_a_process_that_holds_a_partition_is_named_while_others_go_on(node: Node, work: Namespace, held: str) -> None:
    work.delete(held)
    wait_until("an Event names the process", lambda: list_in_use(node), timeout_s=60)
    work.apply(pod("other"))
    work.wait_running("other")
    work.end("other")
    kubelet_says = node.cluster.processes["kubelet"].tail(5, matching=r"is in use by trainer \(pid 4711\)")
    stays = work.pod(held)["metadata"].get("deletionTimestamp") is not None

    node.simulator.run("idle", "0", TRAINER)
    work.wait_gone(held)

    named = ["is in use by trainer (pid 4711)" in note for note in list_in_use(node)]
    assert (all(named), bool(kubelet_says), stays) == (True, True, True)


def test_a_record_whose_claim_is_gone_is_told(node: Node, work: Namespace, held: str) -> None:
    uid = work.claim_of(held, "gpu")["metadata"]["uid"]
    work.delete(held, grace_s=0)
    wait_until("the claim is gone", lambda: uid not in list_claim_uids(node, work), timeout_s=60)

    report = read_sweep(node)
    node.simulator.run("idle", "0", TRAINER)

    # The kubelet may have begun to give it back meanwhile, which the report tells too.
    told = [one for one in report["found"] if (one["claimUID"], one["kind"]) == (uid, "record-without-claim")]
    assert [(one["outcome"], "trainer (pid 4711)" in one["message"]) for one in told] == [("reported", True)]


def list_mode_held(node: Node) -> dict[str, str]:
    """The values of the taint by device."""
    return {
        name: taint["value"]
        for name, device in list_devices(node.cluster).items()
        for taint in device.get("taints", ())
        if taint["key"] == "gpu.nvidia.com/mode-held"
    }


@pytest.fixture
def busy(node: Node, work: Namespace) -> Iterator[None]:
    """An agent keeps GPU 0 out of MIG mode."""
    node.simulator.set_mig_mode(0, on=False)
    node.simulator.run("busy", "0", TRAINER, "--kind", "open", "--name", "agent")
    yield
    if TRAINER in node.simulator.run("status"):
        node.simulator.run("idle", "0", TRAINER)


def test_a_gpu_whose_mode_is_held_is_avoided_until_its_holder_ends(node: Node, work: Namespace, busy: None) -> None:
    anywhere = render_template("anywhere", render_claim_spec([render_request("core", profile="1g.10gb")]))
    work.apply(ONE, anywhere, pod("first"))
    wait_until("its partitions are tainted", lambda: list_mode_held(node), timeout_s=200)
    tainted = list_mode_held(node)
    work.apply(render_pod("elsewhere", templates={"gpu": "anywhere"}))
    work.wait_running("elsewhere")
    (seen,) = node.simulator.list_partitions()

    node.simulator.run("idle", "0", TRAINER)
    work.wait_running("first", timeout_s=200)
    wait_until("the taints are gone", lambda: not list_mode_held(node), timeout_s=30)

    assert (seen.gpu, "gpu-0" in tainted, set(tainted.values())) == (
        1,
        False,
        {f"mig-on-held-by-agent--pid-{TRAINER}"},
    )
