"""SIGKILL at every step of a prepare and of an unprepare: the claim is served or given back once, and nothing is left.

Each point says what the dead driver left, as proof that it died there. Steps that NVML performs are cut inside the
call, the others before the file that ends them is put in place or removed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from e2e.harness import doomed
from e2e.harness.driver import list_cdi_files, list_records
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2"
UUIDS = "TESELA_GPU_CORE_UUIDS"
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb")]))
RECORD, FOLDER, CDI = r"/claims/[\w-]+\.json", r"/claims", r"/cdi/[\w.-]+\.json"
NOTHING: Sequence[str] = ()


def pod(name: str) -> Json:
    return render_pod(name, templates={"gpu": "one"})


@dataclass(frozen=True)
class Inside:
    """While an NVML call is under way, which then has its effect: a kernel ends a call before it ends its process."""

    function: str

    def arm(self, node: Node) -> None:
        node.simulator.run("hang", self.function)

    def wait(self, node: Node) -> None:
        calls = node.simulator.list_calls
        wait_until(f"{self.function} is under way", lambda: (self.function, "hung") in calls(), timeout_s=30)
        node.driver.kill()
        node.simulator.run("release")
        wait_until(f"{self.function} is done", lambda: not calls(), timeout_s=30)


@dataclass(frozen=True)
class Before:
    """Before the driver does this to such a file for the `number`-th time since its start."""

    act: str
    path: str
    number: int = 1

    def arm(self, node: Node) -> None:
        node.driver.stop()
        node.driver.start(through=[sys.executable, doomed.__file__, self.act, str(self.number), self.path])

    def wait(self, node: Node) -> None:
        assert node.driver.process.wait(60) == -signal.SIGKILL


PREPARE = {
    "its record": (Before("os.rename", RECORD), NOTHING),
    "the MIG mode": (Inside("nvmlDeviceSetMigMode"), ["record: preparing"]),
    "the GPU instance": (
        Inside("nvmlDeviceCreateGpuInstanceWithPlacement"),
        ["record: preparing", "GPU instance"],
    ),
    "the compute instance": (Inside("nvmlGpuInstanceCreateComputeInstance"), ["record: preparing", "partition"]),
    "the ids on record": (Before("os.rename", RECORD, 2), ["record: preparing", "partition"]),
    "the CDI file": (Before("os.rename", CDI), ["record: preparing", "partition"]),
    "prepared on record": (Before("os.rename", RECORD, 3), ["record: preparing", "partition", "CDI file"]),
    "the answer": (Before("open", FOLDER), ["record: prepared", "partition", "CDI file"]),
}
UNPREPARE = {
    "its mark": (Before("os.rename", RECORD, 4), ["record: prepared", "partition", "CDI file"]),
    "the compute instance": (
        Inside("nvmlComputeInstanceDestroy"),
        ["record: unpreparing", "GPU instance", "CDI file"],
    ),
    "the GPU instance": (Inside("nvmlGpuInstanceDestroy"), ["record: unpreparing", "CDI file"]),
    "the CDI file": (Before("os.remove", CDI), ["record: unpreparing", "CDI file"]),
    "its record": (Before("os.remove", RECORD), ["record: unpreparing"]),
    "the answer": (Before("open", FOLDER, 2), NOTHING),
}


def list_left(node: Node) -> list[str]:
    """What stands of the one claim."""
    records = [f"record: {one['record']['state']}" for one in list_records(node.cluster).values()]
    instances = ["partition" if seen.complete else "GPU instance" for seen in node.simulator.list_partitions()]
    return [*records, *instances, *("CDI file" for path in list_cdi_files(node.cluster) if path.suffix == ".json")]


@pytest.mark.parametrize(("point", "left"), PREPARE.values(), ids=PREPARE)
def test_a_prepare_cut_short_by_a_kill_is_done_once_after_the_restart(
    node: Node, work: Namespace, point: Inside | Before, left: Sequence[str]
) -> None:
    for gpu in range(2):
        node.simulator.set_mig_mode(gpu, on=False)  # so that it has to be switched
    point.arm(node)
    work.apply(ONE, pod("cut"))
    point.wait(node)
    found = list_left(node)

    node.driver.start()
    work.hurry("cut")
    work.wait_running("cut")

    uuids = [seen.uuid for seen in node.simulator.list_partitions()]
    assert (found, uuids) == (list(left), [work.environment("cut")[UUIDS]])


@pytest.mark.parametrize(("point", "left"), UNPREPARE.values(), ids=UNPREPARE)
def test_an_unprepare_cut_short_by_a_kill_is_finished_after_the_restart(
    node: Node, work: Namespace, point: Inside | Before, left: Sequence[str]
) -> None:
    point.arm(node)
    work.apply(ONE, pod("cut"))
    work.wait_running("cut")
    work.delete("cut")
    point.wait(node)
    found = list_left(node)

    node.driver.start()
    work.wait_gone("cut")

    node.wait_clean()
    assert found == list(left)
