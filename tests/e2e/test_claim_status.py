"""What the cluster is told of prepared claims and of changes: claim statuses and Events, on the real API server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.driver import list_devices, list_records
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import EVENTS, RESOURCE_CLAIMS, Json

GPUS = "h100-80gb*2"
DRIVER = "gpu.nvidia.com"
UUIDS = "TESELA_GPU_CORE_UUIDS"
ON_GPU_0 = 'device.attributes["gpu.nvidia.com"].index == 0'
SPEC = render_claim_spec([render_request("core", profile="1g.10gb", selector=ON_GPU_0)])
ONE = render_template("one", SPEC)


@pytest.fixture
def gpu_0_wants_a_reset(node: Node) -> Iterator[partial[str]]:
    """Call it to have it so; at the end of the test it is well again, and the driver has seen it."""
    yield partial(node.simulator.run, "recovery-action", "0", "GPU_RESET")
    node.simulator.run("recovery-action", "0", "NONE")
    wait_until("no finding stands", lambda: not list_taints(node), timeout_s=40)


def list_taints(node: Node) -> list[Json]:
    return [taint for device in list_devices(node.cluster).values() for taint in device.get("taints", [])]


def entries(work: Namespace, pod: str = "a") -> list[Json]:
    return work.claim_of(pod, "gpu")["status"].get("devices") or []


def condition(work: Namespace, kind: str) -> str | None:
    found = [one for entry in entries(work) for one in entry["conditions"] or [] if one["type"] == kind]
    return found[0]["status"] if found else None


def run_one(work: Namespace) -> Json:
    """A pod with a partition of GPU 0; the entry of its claim."""
    work.apply(ONE, render_pod("a", templates={"gpu": "one"}))
    work.wait_running("a")
    wait_until("the claim's status tells of its device", lambda: condition(work, "Ready"), timeout_s=20)
    return entries(work)[0]


def list_node_events(node: Node, reason: str) -> list[Json]:
    events = node.cluster.kube.list(EVENTS, "default").items
    return [event for event in events if event.get("reason") == reason and event["regarding"].get("name") == NODE]


def count_applies(cluster: Cluster) -> int:
    """Server-side applies to claim statuses since the API server began: nobody else here applies them."""
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    wanted = [
        line
        for line in lines
        if line.startswith("apiserver_request_total{")
        and all(label in line for label in ('resource="resourceclaims"', 'subresource="status"', 'verb="APPLY"'))
    ]
    return sum(int(float(re.split(r"\s+", line)[1])) for line in wanted)


def test_a_prepared_claim_shows_the_partition_that_its_pod_has(node: Node, work: Namespace) -> None:
    entry = run_one(work)

    seen = node.find_partition(work.environment("a")[UUIDS])
    data = entry["data"]
    assert (data["uuid"], data["parentUUID"], data["profile"], data["giID"], data["ciID"]) == (
        seen.uuid,
        node.simulator.list_gpus()[seen.gpu],
        "1g.10gb",
        seen.gi_id,
        seen.ci_id,
    )


def test_a_prepared_claim_is_ready_and_healthy(node: Node, work: Namespace) -> None:
    entry = run_one(work)

    shown = {one["type"]: (one["status"], one["reason"]) for one in entry["conditions"]}
    assert shown == {"Ready": ("True", "Prepared"), "Healthy": ("True", "Healthy")}


def test_a_fault_shows_on_the_claim_and_goes_again(
    node: Node, work: Namespace, gpu_0_wants_a_reset: partial[str]
) -> None:
    run_one(work)

    gpu_0_wants_a_reset()
    wait_until("the claim shows the fault", lambda: condition(work, "Healthy") == "False", timeout_s=30)
    node.simulator.run("recovery-action", "0", "NONE")

    wait_until("the claim is healthy again", lambda: condition(work, "Healthy") == "True", timeout_s=30)


def test_a_fault_is_one_event_of_the_node_that_names_the_claim(
    node: Node, work: Namespace, gpu_0_wants_a_reset: partial[str]
) -> None:
    run_one(work)
    claim = work.claim_of("a", "gpu")["metadata"]["name"]
    gpu_0_wants_a_reset()

    def naming_the_claim() -> list[Json]:
        return [one for one in list_node_events(node, "GPUUnhealthy") if f"{work.name}/{claim}" in one["note"]]

    wait_until("the event is there", naming_the_claim, timeout_s=30)
    wait_until("the claim shows the fault", lambda: condition(work, "Healthy") == "False", timeout_s=30)

    assert [one["type"] for one in naming_the_claim()] == ["Warning"]


def test_an_event_of_the_node_is_in_its_description(
    node: Node, work: Namespace, gpu_0_wants_a_reset: partial[str]
) -> None:
    gpu_0_wants_a_reset()
    wait_until("the event is there", lambda: list_node_events(node, "GPUUnhealthy"), timeout_s=30)

    assert "GPUUnhealthy" in node.cluster.kubectl("describe", "node", NODE)


def test_what_another_manager_said_of_our_device_stays(
    node: Node, work: Namespace, gpu_0_wants_a_reset: partial[str]
) -> None:
    entry = run_one(work)
    name = work.claim_of("a", "gpu")["metadata"]["name"]
    said = {"type": "Attached", "status": "True", "reason": "Bound", "message": ""}
    said["lastTransitionTime"] = entry["conditions"][0]["lastTransitionTime"]
    keys = {field: entry[field] for field in ("driver", "pool", "device")}
    named = {
        "metadata": {"name": name, "namespace": work.name},
        "status": {"devices": [{**keys, "conditions": [said]}]},
    }
    node.cluster.kube.apply_status(RESOURCE_CLAIMS, named, field_manager="binder")

    gpu_0_wants_a_reset()
    wait_until("the claim shows the fault", lambda: condition(work, "Healthy") == "False", timeout_s=30)

    assert condition(work, "Attached") == "True"


def test_a_restarted_driver_writes_no_status_again(node: Node, work: Namespace) -> None:
    run_one(work)
    before = (count_applies(node.cluster), work.claim_of("a", "gpu")["metadata"]["resourceVersion"])

    node.driver.stop()
    node.driver.start()
    node.wait_published()
    # a later claim's status comes after those that are there already were looked at
    work.apply(render_pod("b", templates={"gpu": "one"}))
    work.wait_running("b")
    wait_until("the later claim has its status", lambda: entries(work, "b"), timeout_s=20)

    after = (count_applies(node.cluster) - 1, work.claim_of("a", "gpu")["metadata"]["resourceVersion"])
    assert after == before


def test_a_claim_that_ended_is_left_to_kubernetes(node: Node, work: Namespace) -> None:
    work.apply(render_claim("lasting", SPEC), render_pod("a", claims={"gpu": "lasting"}))
    work.wait_running("a")
    wait_until("the claim's status tells of its device", lambda: condition(work, "Ready"), timeout_s=20)
    before = count_applies(node.cluster)

    work.end("a")
    node.wait_clean()

    def status() -> Json:
        return dict(node.cluster.kube.get(RESOURCE_CLAIMS, "lasting", work.name)["status"])

    wait_until("the claim is deallocated", lambda: "allocation" not in status(), timeout_s=30)
    assert (status().get("devices"), count_applies(node.cluster)) == (None, before)


def test_a_damaged_record_is_an_event_and_its_pod_runs_on(node: Node, work: Namespace) -> None:
    run_one(work)
    node.driver.stop()
    (uid,) = list_records(node.cluster)
    (path,) = (node.cluster.kubelet_folder / "plugins" / DRIVER).rglob(f"claims/{uid}.json")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)

    node.driver.start()
    wait_until("the event is there", lambda: list_node_events(node, "RecordSetAside"), timeout_s=30)

    (event,) = list_node_events(node, "RecordSetAside")
    assert (event["related"]["uid"], work.pod("a")["status"]["phase"]) == (uid, "Running")
