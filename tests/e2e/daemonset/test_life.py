"""The end of a driver, and of its node: what is asked before a removal, and what a node that is gone leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from e2e.harness import deployed
from e2e.harness.build import HarnessError
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.deployed import Overlay
from e2e.harness.driver import DRIVER, is_pool_complete, list_cdi_files, list_records, list_slices
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from e2e.harness.tesela_command import find_tesela
from tesela.edge.kube.port import NODES, RESOURCE_CLAIMS

TAG = "0.1.0"
JOB = "tesela-uninstall-check"
SMALL = render_template("small", render_claim_spec([render_request("core", profile="1g.5gb")]))
COLLECTED_S = 150
"""kube-controller-manager leaves the pods of a missing node for 40 seconds, and looks every 20."""


@dataclass(slots=True)
class Stage:
    """The overlay, the Job that asks before its removal, and a namespace for pods."""

    cluster: Cluster
    overlay: Overlay
    check: Overlay
    work: Namespace

    def ask(self) -> tuple[bool, str]:
        """Whether the Job says that the driver can be removed, and what it printed."""
        self.check.apply(TAG)
        try:
            wait_until("the Job has ended", self._get_end, timeout_s=60)
            return self._get_end() == "Complete", self._kubectl("logs", f"job/{JOB}")
        finally:
            self.check.delete()

    def ask_from_afar(self, *arguments: str) -> str:
        """The same command where an administrator's kubeconfig is; HarnessError where it does not end with 0."""
        config = self.cluster.certificates.path("admin.kubeconfig")
        return self.cluster.run([find_tesela(), "uninstall-check", f"--kubeconfig={config}", *arguments])

    def _get_end(self) -> str:
        query = "jsonpath={.status.conditions[?(@.status=='True')].type}"
        ends = self._kubectl("get", "job", JOB, "-o", query).split()
        return next((end for end in ends if end in {"Complete", "Failed"}), "")

    def _kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", deployed.NAMESPACE, *arguments)


def wait_driver(cluster: Cluster) -> None:
    for name in (deployed.SIM, deployed.DRIVER):
        deployed.wait_rolled_out(cluster, name)
    wait_until("the pool is complete", lambda: is_pool_complete(cluster), timeout_s=60)


@pytest.fixture(scope="module")
def stage(cluster: Cluster) -> Iterator[Stage]:
    overlay = Overlay(cluster, "simulated")
    overlay.apply(TAG)
    wait_driver(cluster)
    work = Namespace(cluster, "life")
    work.create()
    work.apply(SMALL)
    check = Overlay(cluster, "../components/uninstall-check")
    stage = Stage(cluster=cluster, overlay=overlay, check=check, work=work)
    yield stage
    work.clear()
    overlay.delete()


@pytest.fixture
def held(stage: Stage) -> Iterator[str]:
    """The name of a claim that a pod holds."""
    stage.work.apply(render_pod("holder", templates={"gpu": "small"}))
    stage.work.wait_running("holder")

    def is_told() -> bool:
        return bool(stage.work.claim_of("holder", "gpu")["status"].get("devices"))

    wait_until("the claim's status tells of its device", is_told, timeout_s=30)
    yield f"{stage.work.name}/{stage.work.claim_of('holder', 'gpu')['metadata']['name']}"
    stage.work.clear()


def test_the_job_lists_what_still_needs_the_driver(stage: Stage, held: str) -> None:
    removable, printed = stage.ask()

    (row,) = [line.split() for line in printed.splitlines() if held in line]
    assert (removable, row[:4]) == (False, [NODE, held, "prepared", f"{stage.work.name}/holder"])


def test_the_job_succeeds_when_nothing_does(stage: Stage) -> None:
    removable, printed = stage.ask()

    assert (removable, "it can be removed" in printed) == (True, True)


@pytest.fixture
def drained(stage: Stage, held: str) -> Iterator[Stage]:
    """As docs/upgrade.md drains a node; `--force` because the pod has no controller. Schedulable again afterwards."""
    stage.cluster.kubectl("drain", NODE, "--ignore-daemonsets", "--force", "--timeout=60s")
    yield stage
    stage.cluster.kubectl("uncordon", NODE)


def test_a_drained_node_has_given_everything_back_by_the_driver_that_stays(stage: Stage, drained: Stage) -> None:
    wait_until("nothing is recorded", lambda: not list_records(stage.cluster), timeout_s=60)
    kube = stage.cluster.kube
    wait_until("its claim is free", lambda: not kube.list(RESOURCE_CLAIMS, stage.work.name).items, timeout_s=60)
    printed = stage.ask_from_afar("--node", NODE)

    assert "it can be removed" in printed
    assert [pod["status"]["phase"] for pod in deployed.list_pods(stage.cluster, deployed.DRIVER)] == ["Running"]


@pytest.fixture
def newer(stage: Stage) -> Iterator[str]:
    """A newer release's state on the node, its driver still runs, and this release is rolled back to: its last line."""
    cluster = stage.cluster
    deployed.add_tag(cluster, TAG, "older")
    path = cluster.kubelet_folder / "plugins" / DRIVER / "roster.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "version": 99}))
    stage.overlay.apply("older")
    wait_until("the older release has ended", lambda: find_last_words(cluster), timeout_s=60)
    yield find_last_words(cluster)
    path.write_text(before)
    stage.overlay.apply(TAG)
    wait_driver(cluster)


def find_last_words(cluster: Cluster) -> str:
    """The message of a driver's container that ended with an error."""
    for pod in deployed.list_pods(cluster, deployed.DRIVER):
        for status in pod["status"].get("containerStatuses", []):
            for state in (status.get("state", {}), status.get("lastState", {})):
                if state.get("terminated", {}).get("exitCode"):
                    return str(state["terminated"].get("message", ""))
    return ""


def test_a_rollback_that_cannot_read_the_state_says_so_and_the_driver_that_runs_serves_on(
    stage: Stage, newer: str
) -> None:
    stage.work.apply(render_pod("meanwhile", templates={"gpu": "small"}))
    stage.work.wait_running("meanwhile")
    stage.work.clear()

    assert "run the release of tesela that wrote it" in newer


@pytest.fixture
def left(stage: Stage, held: str) -> Iterator[Stage]:
    """The node is gone from the API as if its machine were; afterwards it is registered anew, and labelled."""
    cluster = stage.cluster
    cluster.stop_kubelet()
    cluster.kube.delete(NODES, NODE)
    yield stage
    cluster.start_kubelet()
    wait_until("the node is registered", lambda: cluster.kubectl("get", "nodes", "-o", "name").strip(), timeout_s=60)
    cluster.wait_node_ready()
    for label in ("gpu.nvidia.com/simulated", "nvidia.com/gpu.present"):
        cluster.kubectl("label", "node", NODE, f"{label}=true")
    wait_driver(cluster)


def test_a_node_that_leaves_for_ever_keeps_neither_slices_nor_claims(left: Stage, held: str) -> None:
    printed = left.ask_from_afar()
    kube = left.cluster.kube
    wait_until("its slices are collected", lambda: not list_slices(left.cluster), timeout_s=COLLECTED_S)
    wait_until("its claim is free", lambda: not kube.list(RESOURCE_CLAIMS, left.work.name).items, timeout_s=COLLECTED_S)

    assert any(held in line and "no node any more" in line for line in printed.splitlines())


def test_a_node_that_came_back_after_all_gives_back_what_it_had(stage: Stage) -> None:
    """After the test before: its kubelet has no pod any more for what it prepared then."""
    cluster = stage.cluster
    wait_until("nothing is recorded", lambda: not list_records(cluster), timeout_s=120)
    stage.work.apply(render_pod("next", templates={"gpu": "small"}))
    stage.work.wait_running("next")
    stage.work.clear()

    wait_until("no CDI file is left", lambda: not list_cdi_files(cluster), timeout_s=60)


def test_an_administrator_is_told_by_the_exit_code(stage: Stage, held: str) -> None:
    with pytest.raises(HarnessError, match=r"ended with 1: .*"):
        stage.ask_from_afar("-o", "json")
