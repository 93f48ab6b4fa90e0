"""The overlay `simulated` from its first pod to its removal: a bridge, everything the driver's token must not do, an
update under load with a GPU that is ill meanwhile, and what is left at the end."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from e2e.daemonset.attempts import ATTEMPTS, DRIVER, OTHER_DRIVER, OTHER_NODE, Attempt, render_slice
from e2e.daemonset.conftest import Summary
from e2e.harness import deployed
from e2e.harness.build import HarnessError
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.deployed import Overlay, SimulatorInPod
from e2e.harness.driver import is_pool_complete, list_cdi_files, list_devices, list_records, list_slices
from e2e.harness.pods import (
    LIST_DEVICE_NODES,
    Namespace,
    fit_to_this_machine,
    render_claim_spec,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from e2e.harness.watching import Changes, Load, SliceWatch
from tesela.edge.kube.port import RESOURCE_CLAIMS, RESOURCE_SLICES, Json

EXAMPLE = Path(__file__).resolve().parents[3] / "deviceclasses" / "examples" / "bridge.yaml"
BRIDGE, CONTAINER, CLAIM = "omniverse-local-bridge", "bridge", "gpu"
TAG, NEXT_TAG = "0.1.0", "next"
LANES = 3
KINDS = (
    "namespaces,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,daemonsets,pods,configmaps,"
    "networkpolicies,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings"
)
ILL, HELD = "3", 'device.attributes["gpu.nvidia.com"].index == 3'
SMALL = render_template("small", render_claim_spec([render_request("core", profile="1g.5gb")]))
SICK = render_template(
    "sick", render_claim_spec([render_request("core", device_class="gpu.nvidia.com", selector=HELD)])
)


@dataclass(slots=True)
class Stage:
    """The overlay on the cluster."""

    cluster: Cluster
    overlay: Overlay
    simulator: SimulatorInPod
    gone: bool = False


@pytest.fixture(scope="module")
def stage(cluster: Cluster, summary: Summary) -> Iterator[Stage]:
    overlay = Overlay(cluster, "simulated")
    objects = overlay.apply(TAG)
    summary.count("objects applied", len(objects))
    for name in (deployed.SIM, deployed.DRIVER):
        deployed.wait_rolled_out(cluster, name)
    wait_until("the pool is complete", lambda: is_pool_complete(cluster), timeout_s=30)
    stage = Stage(cluster=cluster, overlay=overlay, simulator=SimulatorInPod(cluster))
    yield stage
    if not stage.gone:
        overlay.delete()


@pytest.fixture(scope="module")
def bridge(stage: Stage) -> Namespace:
    namespace = Namespace(stage.cluster, "spatial-net")
    for manifest in yaml.safe_load_all(EXAMPLE.read_text()):
        stage.cluster.apply(fit_to_this_machine(manifest))
    namespace.wait_running(BRIDGE)
    return namespace


@pytest.fixture(scope="module")
def work(stage: Stage) -> Namespace:
    namespace = Namespace(stage.cluster, "work")
    namespace.create()
    namespace.apply(SMALL, SICK)
    return namespace


def test_the_overlay_publishes_the_pool(stage: Stage, summary: Summary) -> None:
    devices = list_devices(stage.cluster)
    summary.count("devices published", len(devices))

    assert {f"gpu-{number}" for number in (2, 3)} < set(devices)


def test_the_driver_has_no_capability_on_simulated_gpus(stage: Stage) -> None:
    status = deployed.run_python(stage.cluster, deployed.DRIVER, "print(open('/proc/1/status').read())")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff"))

    assert int(effective.split()[1], 16) == 0


@pytest.mark.parametrize("daemonset", [deployed.DRIVER, deployed.SIM])
def test_the_root_of_each_container_is_read_only(stage: Stage, daemonset: str) -> None:
    with pytest.raises(HarnessError, match="Read-only file system"):
        deployed.run_python(stage.cluster, daemonset, "open('/mine', 'w')")


def test_the_simulator_has_no_token(stage: Stage) -> None:
    with pytest.raises(HarnessError, match="No such file"):
        deployed.run_python(stage.cluster, deployed.SIM, f"open({deployed.TOKEN!r})")


def test_the_bridge_shows_the_nodes_of_its_partition_and_no_others(stage: Stage, bridge: Namespace) -> None:
    shown = bridge.exec(BRIDGE, LIST_DEVICE_NODES, container=CONTAINER).split()

    assert set(shown) == stage.simulator.list_device_nodes(*stage.simulator.list_partitions())


@pytest.mark.parametrize(("path", "shown"), [("readyz", "ok"), ("metrics", 'model="NVIDIA H100 80GB HBM3"')])
def test_probes_and_metrics_are_served_at_the_port_that_is_named_so(stage: Stage, path: str, shown: str) -> None:
    pod = deployed.get_pod(stage.cluster, deployed.DRIVER)
    (port,) = [one["containerPort"] for one in pod["spec"]["containers"][0]["ports"] if one["name"] == "metrics"]
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{port}/{path}", timeout=10) as answer:
        text = answer.read().decode()

    assert shown in text


@pytest.mark.parametrize(
    ("daemonset", "command", "shown"),
    [
        (deployed.SIM, "tesela sim status", "1g.5gb"),
        (deployed.DRIVER, "tesela health list", "healthy"),
        (deployed.DRIVER, "tesela sweep", "everything fits"),
    ],
)
def test_an_operator_runs_the_node_s_commands_in_the_pods(
    stage: Stage, bridge: Namespace, daemonset: str, command: str, shown: str
) -> None:
    assert shown in deployed.exec_in(stage.cluster, daemonset, *command.split())


@pytest.fixture(scope="module")
def others(stage: Stage, bridge: Namespace) -> Iterator[dict[str, str]]:
    """Things of others that an attempt could harm, and the names that attempts have to fill in."""
    kube = stage.cluster.kube
    kube.create(RESOURCE_SLICES, render_slice("others", OTHER_NODE, DRIVER))
    kube.create(RESOURCE_SLICES, render_slice("neighbour", NODE, OTHER_DRIVER))
    stage.cluster.kubectl("-n", deployed.NAMESPACE, "create", "secret", "generic", "kept", "--from-literal=a=b")
    spec = render_claim_spec([render_request("gpu", device_class="gpu.nvidia.com")])
    made = kube.create(
        RESOURCE_CLAIMS, {"metadata": {"name": "elsewhere", "namespace": bridge.name}, "spec": spec}
    )  # fmt: skip
    result = {"request": "gpu", "driver": DRIVER, "pool": OTHER_NODE, "device": "gpu-0"}
    field = {"key": "metadata.name", "operator": "In", "values": [OTHER_NODE]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    kube.replace_status(RESOURCE_CLAIMS, {**made, "status": {"allocation": allocation}})
    yield {
        "kubeconfig": str(deployed.write_own_kubeconfig(stage.cluster)),
        "{namespace}": bridge.name,
        "{claim}": bridge.claim_of(BRIDGE, CLAIM)["metadata"]["name"],
        "{pod}": deployed.get_pod(stage.cluster, deployed.DRIVER)["metadata"]["name"],
    }
    stage.cluster.kubectl("delete", "resourceslice", "others", "neighbour")  # the rest ends with its namespace


def _try(cluster: Cluster, attempt: Attempt, names: dict[str, str]) -> str:
    """What kubectl prints with the token of the driver's pod; HarnessError with what the server says."""
    obj = attempt.obj
    if obj and attempt.command.startswith("replace"):  # of what is there: kubectl would look first, which is refused
        old = cluster.kube.get(RESOURCE_SLICES, obj["metadata"]["name"])
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}}
    command, stdin = attempt.command, json.dumps(obj) if obj else ""
    for name, value in names.items():
        command, stdin = command.replace(name, value), stdin.replace(name, value)
    return cluster.kubectl(*command.split(), stdin=stdin, kubeconfig=Path(names["kubeconfig"]))


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
def test_the_driver_s_own_token_is_refused(
    stage: Stage, others: dict[str, str], attempt: Attempt, summary: Summary
) -> None:
    with pytest.raises(HarnessError, match=r"(?i)forbidden|denied request") as refused:
        _try(stage.cluster, attempt, others)
    said = str(refused.value).partition(": ")[2].replace("\n", " ")
    summary.refuse(attempt.what, said)

    assert f"system:serviceaccount:{deployed.NAMESPACE}:{deployed.DRIVER}" in said or "denied request" in said


@pytest.mark.parametrize(
    "command", ["get resourceclaim {claim} -n {namespace}", "get resourceslices", f"get node {NODE}"]
)
def test_the_same_token_reads_what_the_driver_needs(stage: Stage, others: dict[str, str], command: str) -> None:
    shown = _try(stage.cluster, Attempt(what="", command=f"{command} -o name"), others)

    assert "resource" in shown or "node" in shown


@dataclass(slots=True, kw_only=True)
class Update:
    """What was seen while the DaemonSet was updated."""

    took_s: list[float]
    slices: SliceWatch
    health: Changes[str]
    ready: Changes[list[bool]]
    before: Json
    after: Json
    failures: list[str]


def _read_health(work: Namespace) -> str:
    """What the pod on the GPU that falls ill shows of it."""
    (status,) = work.pod("sick")["status"].get("containerStatuses") or [{}]
    found = [one for claim in status.get("allocatedResourcesStatus", []) for one in claim["resources"]]
    return found[0]["health"] if found else "nothing"


def _wait_for_health(work: Namespace, health: str) -> None:
    wait_until(f"pod sick shows {health}", lambda: _read_health(work) == health, timeout_s=60)


@pytest.fixture(scope="module")
def update(stage: Stage, bridge: Namespace, work: Namespace, summary: Summary) -> Update:
    """Another release of the image, while claims come and go and a GPU under a pod is ill."""
    cluster = stage.cluster
    work.apply(render_pod("sick", templates={"gpu": "sick"}))
    work.wait_running("sick")
    _wait_for_health(work, "Healthy")
    stage.simulator.run("ecc", ILL, "--uncorrected", "1", "--volatile-only")
    _wait_for_health(work, "Unhealthy")
    deployed.add_tag(cluster, TAG, NEXT_TAG)
    before = deployed.get_pod(cluster, deployed.DRIVER)
    lanes = [Load(work, f"lane-{n}", lambda name: render_pod(name, templates={"gpu": "small"})) for n in range(LANES)]
    slices = SliceWatch(cluster)
    health = Changes(lambda: _read_health(work))
    ready = Changes(lambda: [_is_ready(pod) for pod in deployed.list_pods(cluster, deployed.DRIVER)])
    with ExitStack() as stack:
        for one in (slices, health, ready, *lanes):
            stack.enter_context(one)
        wait_until("claims come and go", lambda: all(lane.took_s for lane in lanes), timeout_s=60)
        stage.overlay.apply(NEXT_TAG)
        deployed.wait_rolled_out(cluster, deployed.DRIVER)
        done = [len(lane.took_s) for lane in lanes]
        wait_until(
            "claims come and go afterwards",
            lambda: all(len(lane.took_s) > count for lane, count in zip(lanes, done, strict=True)),
            timeout_s=60,
        )
    took_s = sorted(second for lane in lanes for second in lane.took_s)
    summary.count("claims prepared and given back during the update", len(took_s))
    summary.count("slowest of these pods, from creation to running, s", f"{took_s[-1]:.1f}")
    summary.count("fewest devices visible during the update", slices.fewest)
    summary.count("changes of slices during the update", len(slices.events))
    shown = ", ".join(
        f"{value} from {at - health.since_s[0]:.1f} s" for value, at in zip(health.values, health.since_s, strict=True)
    )
    summary.count(f"changes of health on the pod of the ill GPU meanwhile ({shown})", len(health.values) - 1)
    events = [event for event in work.list_events() if event["type"] != "Normal"]
    return Update(
        took_s=took_s,
        slices=slices,
        health=health,
        ready=ready,
        before=before,
        after=deployed.get_pod(cluster, deployed.DRIVER),
        failures=[e["message"] for e in events if "repare" in e["message"] or "repare" in e["reason"]],
    )


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def test_an_update_makes_a_pod_of_the_new_image(update: Update) -> None:
    images = [pod["spec"]["containers"][0]["image"] for pod in (update.before, update.after)]

    assert images == [f"{deployed.IMAGE}:{TAG}", f"{deployed.IMAGE}:{NEXT_TAG}"]


def test_at_every_moment_of_an_update_one_driver_is_ready(update: Update) -> None:
    assert [ready for ready in update.ready.values if True not in ready] == []


def test_no_prepare_fails_during_an_update(update: Update) -> None:
    assert update.failures == []


def test_no_device_vanishes_during_an_update(update: Update) -> None:
    assert (update.slices.fewest, update.slices.events.count("DELETED")) == (len(update.slices.before), 0)


def test_the_bridge_goes_on_through_an_update(stage: Stage, bridge: Namespace, update: Update) -> None:
    (status,) = bridge.pod(BRIDGE)["status"]["containerStatuses"]
    held = bridge.environment(BRIDGE, container=CONTAINER)["TESELA_GPU_PRIMARY_RENDERING_CORE_UUIDS"]

    assert status["restartCount"] == 0
    assert held in {seen.uuid for seen in stage.simulator.list_partitions()}


def test_the_newer_process_tells_what_was_ill_before(work: Namespace, update: Update) -> None:
    """When the older one's stream ends, the kubelet forgets what both told: the newer one then says it again."""
    _wait_for_health(work, "Unhealthy")


def test_a_pod_never_looks_healthy_on_an_ill_gpu_during_an_update(update: Update) -> None:
    assert "Healthy" not in update.health.values


def test_the_newer_process_publishes_and_tells_what_recovers(stage: Stage, work: Namespace, update: Update) -> None:
    stage.simulator.run("reset", ILL)
    _wait_for_health(work, "Healthy")
    wait_until("the GPU's taint is gone", lambda: not list_devices(stage.cluster)["gpu-3"].get("taints"), timeout_s=30)


def test_an_update_to_an_image_that_cannot_run_leaves_the_old_driver_at_work(
    stage: Stage, work: Namespace, update: Update
) -> None:
    cluster = stage.cluster
    stage.overlay.apply("missing")
    wait_until("a second pod waits for its image", lambda: len(deployed.list_pods(cluster, deployed.DRIVER)) == 2,
               timeout_s=30)  # fmt: skip
    work.apply(render_pod("meanwhile", templates={"gpu": "small"}))
    work.wait_running("meanwhile")
    work.end("meanwhile")
    stage.overlay.apply(NEXT_TAG)
    deployed.wait_rolled_out(cluster, deployed.DRIVER)

    assert deployed.get_pod(cluster, deployed.DRIVER)["metadata"]["uid"] == update.after["metadata"]["uid"]


@dataclass(slots=True, kw_only=True)
class Left:
    """What is there after the removal."""

    partitions: list[object]
    objects: str
    files: list[str]


@pytest.fixture(scope="module")
def left(stage: Stage, bridge: Namespace, work: Namespace, update: Update, summary: Summary) -> Left:
    """The removal, in the order that docs/install.md gives: first the pods that hold claims."""
    cluster = stage.cluster
    for namespace in (bridge, work):
        namespace.clear()
    wait_until("nothing is held", lambda: not list_records(cluster), timeout_s=30)
    partitions: list[object] = list(stage.simulator.list_partitions())
    stage.overlay.delete()
    stage.gone = True
    wait_until("the kubelet has removed the slices", lambda: not list_slices(cluster), timeout_s=90)
    folder = cluster.kubelet_folder / "plugins" / DRIVER
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    summary.count("files left in the driver's folder: roster, findings, locks", len(files))
    return Left(
        partitions=partitions,
        objects=cluster.kubectl("get", KINDS, "-A", "-l", "app.kubernetes.io/part-of=tesela", "-o", "name"),
        files=files,
    )


def test_no_partition_is_left_when_the_claims_have_gone(left: Left) -> None:
    assert left.partitions == []


def test_no_object_is_left_after_the_removal(left: Left) -> None:
    assert left.objects == ""


def test_no_socket_and_no_cdi_file_is_left_after_the_removal(stage: Stage, left: Left) -> None:
    sockets = [path for path in (stage.cluster.kubelet_folder / "plugins_registry").iterdir() if DRIVER in path.name]

    assert ([name for name in left.files if name.endswith(".sock")], sockets, list_cdi_files(stage.cluster)) == (
        [],
        [],
        [],
    )
