"""The API server is away for two minutes, and the node works on: claims end, the driver restarts, a GPU falls ill.

One absence for all tests of this file; each looks at one thing that it showed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from e2e.harness.cluster import Cluster
from e2e.harness.driver import list_devices
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import Process, wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2"
UUIDS = "TESELA_GPU_CORE_UUIDS"
AWAY_S = 120
WATCHED_S = 45  # of each of the two drivers
PROCESSOR_SHARE = 0.03  # one that asks on and on takes all; the idle budget is `make bench`'s
LINES_PER_MINUTE = 30
RELISTED_S = 120  # the kubelet's own pauses grow to half a minute and more, before it hears of a new pod
ON_GPU_0 = 'device.attributes["gpu.nvidia.com"].index == 0'
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb", selector=ON_GPU_0)]))

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True, kw_only=True)
class Idling:
    """What a driver used and said."""

    processor_share: float
    lines_per_minute: float


@dataclass(frozen=True, kw_only=True)
class Absence:
    """What was seen of it."""

    uuids: dict[str, str]
    """The partitions of the pods, when it began."""
    lived: list[set[str]]
    """The partitions that lived after the first pod's end, and after the second's."""
    idling: list[Idling]
    """The driver that saw the API server go, and the one that started while it was away."""
    before: Json
    """The devices, by name, before it."""


def pod(name: str) -> Json:
    return render_pod(name, templates={"gpu": "one"})


def list_uuids(node: Node) -> set[str]:
    return {seen.uuid for seen in node.simulator.list_partitions()}


def list_tainted(node: Node) -> set[str]:
    return {name for name, device in list_devices(node.cluster).items() if device.get("taints")}


def watch(process: Process) -> Idling:
    """For `WATCHED_S`."""
    began, used_s, lines = time.monotonic(), process.cpu_s, len(process.log.read_text().splitlines())
    wait(began + WATCHED_S)
    took_s = time.monotonic() - began
    said = len(process.log.read_text().splitlines()) - lines
    return Idling(processor_share=(process.cpu_s - used_s) / took_s, lines_per_minute=said * 60 / took_s)


def wait(until_s: float) -> None:
    wait_until("the time is over", lambda: time.monotonic() > until_s, timeout_s=2 * AWAY_S)


@pytest.fixture(scope="module")
def work(cluster: Cluster, node: Node) -> Iterator[Namespace]:
    """The namespace of three pods with a partition of GPU 0 each."""
    work = Namespace(cluster, "away")
    work.create()
    work.apply(ONE, pod("steady"), pod("first"), pod("second"))
    work.wait_running("steady", "first", "second")
    yield work
    work.clear()
    work.remove()


@pytest.fixture(scope="module")
def absence(node: Node, work: Namespace) -> Absence:
    """Meanwhile two pods end, each under another driver, and GPU 1 gets an error that ECC cannot correct."""
    cluster = node.cluster
    uuids = {name: work.environment(name)[UUIDS] for name in ("steady", "first", "second")}
    containers = {name: work.get_container_id(name) for name in uuids}
    before, began, lived = list_devices(cluster), time.monotonic(), []

    def end(name: str) -> None:
        cluster.kill_container(containers[name])
        wait_until(f"{name} has given its partition back", lambda: uuids[name] not in list_uuids(node), timeout_s=30)
        lived.append(list_uuids(node))

    cluster.stop_control_plane()
    try:
        idling = [watch(node.driver.process)]
        end("first")
        node.simulator.run("ecc", "1", "--uncorrected", "1")
        node.driver.kill()
        node.driver.start()
        idling.append(watch(node.driver.process))
        end("second")
        wait(began + AWAY_S)
    finally:
        cluster.start_control_plane()
    return Absence(uuids=uuids, lived=lived, idling=idling, before=before)


def test_claims_end_while_it_is_away(absence: Absence) -> None:
    names = [{"steady", "second"}, {"steady"}]

    assert absence.lived == [{absence.uuids[name] for name in left} for left in names]


def test_a_driver_asks_for_it_with_pauses(absence: Absence) -> None:
    assert max(one.processor_share for one in absence.idling) < PROCESSOR_SHARE, absence.idling


def test_a_driver_does_not_fill_its_log(absence: Absence) -> None:
    assert max(one.lines_per_minute for one in absence.idling) < LINES_PER_MINUTE, absence.idling


def test_what_happened_meanwhile_is_published_when_it_is_back(absence: Absence, node: Node) -> None:
    ill = {name for name in absence.before if name.startswith("gpu-1")}

    wait_until("the devices of GPU 1 are tainted", lambda: list_tainted(node) == ill, timeout_s=60)


def test_pods_start_and_end_when_it_is_back(absence: Absence, node: Node, work: Namespace) -> None:
    work.apply(pod("late"))
    work.wait_running("late", timeout_s=RELISTED_S)

    work.end("first", "second", "late")

    assert (list_uuids(node), work.environment("steady")[UUIDS]) == (
        {absence.uuids["steady"]},
        absence.uuids["steady"],
    )


def test_the_slices_are_as_before_once_the_gpu_is_well(absence: Absence, node: Node) -> None:
    node.simulator.run("reset", "1")

    wait_until("the devices are as before", lambda: list_devices(node.cluster) == absence.before, timeout_s=60)
