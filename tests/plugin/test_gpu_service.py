"""`tesela gpu cordon`, `drain` and `uncordon` on an embedded cluster behind HTTP, with pods that end."""

from __future__ import annotations

import json
import threading

import pytest
from contract.kube_objects import DRIVER, NAMESPACE, build, device_class, pod, request, resource_slice, template
from contract.kube_world import Control
from polling import until
from tesela.cli.main import main
from tesela.core.cordon import Target, find_rules, find_targets, plan_rule, render_rule
from tesela.core.errors import ApiNotFound, StateError
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.faults import Fault, FlakyKube, unavailable
from tesela.edge.embedded.server import ApiServer
from tesela.edge.embedded.taint_eviction import TaintEviction
from tesela.edge.kube.port import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)

UUID_0, UUID_1 = "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001"
PARTS = ["gpu-0-mig-1g5gb-19-0", "gpu-0-mig-1g5gb-19-1"]


def device(name, parent, uuid=""):
    attributes = {"uuid": {"string": uuid}, "parentUUID": {"string": parent}, "type": {"string": "gpu"}}
    return {"name": name, "attributes": attributes}


def published(node, *devices):
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return resource_slice(nodeName=node, pool=pool, devices=list(devices))


GPUS = [device("gpu-0", UUID_0, UUID_0), *(device(name, UUID_0) for name in PARTS), device("gpu-1", UUID_1, UUID_1)]


class Cluster:
    """One node with two GPUs; `flaky` stands before the API server."""

    def __init__(self, folder):
        self.kube = EmbeddedCluster()
        self.kube.create(NODES, build(NODES, "node-a"))
        self.kube.create(DEVICE_CLASSES, device_class(DRIVER))
        self.kube.create(RESOURCE_SLICES, published("node-a", *GPUS))
        self.flaky = FlakyKube(self.kube)
        self.server = ApiServer(self.flaky)
        self.kubeconfig = str(self.server.write_kubeconfig(folder / "kubeconfig"))
        self.control = Control(self.kube)
        self.eviction = TaintEviction(self.kube)
        self._turn = threading.Lock()  # as leader election: two controllers would make two claims for one pod

    def run(self, verb, *arguments):
        return main(["gpu", verb, "--kubeconfig", self.kubeconfig, *arguments])

    def start(self, name, **more):
        """A pod that gets the first device that is free."""
        self.kube.create(RESOURCE_CLAIM_TEMPLATES, template(name, [request(**more)]))
        claims = [{"name": "gpu", "resourceClaimTemplateName": name}]
        self.kube.create(PODS, pod(name, resourceClaims=claims))
        with self._turn:
            self.control.settle()

    def effects(self):
        rules = self.kube.list(DEVICE_TAINT_RULES).items
        return {one["spec"]["deviceSelector"]["device"]: one["spec"]["taint"]["effect"] for one in rules}

    def run_manager(self, *, ending=True):
        """kube-controller-manager and a kubelet, until `stop` is set."""
        stop = threading.Event()

        def work():
            while not stop.wait(0.02):
                with self._turn:
                    self.eviction.sync()
                    for one in self.kube.list(PODS).items:
                        if ending and one["metadata"].get("deletionTimestamp"):
                            self.kube.delete(PODS, one["metadata"]["name"], NAMESPACE, grace_period_s=0)
                    self.control.controller.sync()

        thread = threading.Thread(target=work)
        thread.start()
        return stop, thread

    def close(self):
        self.server.close()
        self.kube.close()


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def manager(cluster):
    stop, thread = cluster.run_manager()
    yield
    stop.set()
    thread.join(10)


# Which devices a name means


@pytest.mark.parametrize("named", ["gpu-0", UUID_0])
def test_a_gpu_means_all_its_devices(named):
    found = find_targets([published("node-a", *GPUS)], named)

    assert [one.device for one in found] == ["gpu-0", *PARTS]


@pytest.mark.parametrize("named", [PARTS[0], "MIG-7"])
def test_a_partition_means_itself(named):
    devices = [device(PARTS[0], UUID_0, "MIG-7"), device(PARTS[1], UUID_0)]

    assert [one.device for one in find_targets([published("node-a", *devices)], named)] == [PARTS[0]]


def test_a_gpu_of_several_nodes_wants_its_node():
    slices = [published(node, device("gpu-0", f"GPU-{node}")) for node in ("a", "b")]

    with pytest.raises(StateError, match="on nodes a, b: say which by --node"):
        find_targets(slices, "gpu-0")


def test_with_its_node_it_is_found():
    slices = [published(node, device("gpu-0", f"GPU-{node}")) for node in ("a", "b")]

    assert [one.pool for one in find_targets(slices, "gpu-0", "b")] == ["b"]


def test_an_unknown_name_is_answered_with_those_that_are_known():
    with pytest.raises(StateError, match=rf"gpu-7.*it publishes gpu-0 on node-a \({UUID_0}\), gpu-1"):
        find_targets([published("node-a", *GPUS)], "gpu-7")


def test_devices_of_other_drivers_are_not_meant():
    with pytest.raises(StateError, match="no GPU at all"):
        find_targets([resource_slice(driver="other.example.com", devices=GPUS)], "gpu-0")


def test_names_of_rules_tell_devices_and_nodes_apart():
    pairs = [("a", "gpu-0"), ("gpu-0.a", "gpu-1"), ("a", "gpu-1"), ("n" * 250, "gpu-1"), ("n" * 249 + "m", "gpu-1")]
    targets = [Target(pool=pool, device=name, gpu_uuid="") for pool, name in pairs]

    names = {name for one in targets for name in (one.rule_name, one.dry_run_name)}
    assert (len(names), max(map(len, names)) <= 253) == (10, True)


# Rules


TARGET = Target(pool="node-a", device="gpu-0", gpu_uuid=UUID_0)


def test_a_rule_selects_exactly_its_device():
    selector = render_rule(TARGET, "NoSchedule", "why")["spec"]["deviceSelector"]

    assert selector == {"driver": DRIVER, "pool": "node-a", "device": "gpu-0"}


def test_a_rule_of_somebody_else_is_left_alone():
    theirs = render_rule(TARGET, "NoSchedule", "why")
    theirs["metadata"]["labels"] = {}

    with pytest.raises(StateError, match="not of tesela's making"):
        plan_rule(theirs, TARGET, "NoExecute", "why")


def test_a_cordon_makes_no_drain_milder():
    assert plan_rule(render_rule(TARGET, "NoExecute", "why"), TARGET, "NoSchedule", "why") is None


def test_rules_of_a_gpu_that_is_published_no_longer_are_found():
    rule = render_rule(TARGET, "NoSchedule", "why")

    assert find_rules([rule], UUID_0, None, ()) == (rule,)


# The command


def test_cordon_keeps_new_claims_away(cluster):
    cluster.run("cordon", "gpu-0")

    cluster.start("late")

    assert cluster.control.devices_of("late") == ["gpu-1"]


def test_cordon_makes_a_rule_for_each_device(cluster):
    assert (cluster.run("cordon", "gpu-0"), cluster.effects()) == (
        0,
        dict.fromkeys(["gpu-0", *PARTS], "NoSchedule"),
    )


def test_cordon_twice_is_cordon(cluster):
    cluster.run("cordon", "gpu-0")
    before = cluster.kube.list(DEVICE_TAINT_RULES).items

    assert (cluster.run("cordon", "gpu-0"), cluster.kube.list(DEVICE_TAINT_RULES).items) == (0, before)


def test_cordon_again_tells_the_new_reason(cluster):
    cluster.run("cordon", "gpu-1", "--reason", "first")
    cluster.run("cordon", "gpu-1", "--reason", "ticket 4711")

    (rule,) = cluster.kube.list(DEVICE_TAINT_RULES).items
    told = (rule["metadata"]["annotations"]["gpu.nvidia.com/reason"], rule["spec"]["taint"]["value"])
    assert told == ("ticket 4711", "ticket-4711")


def test_a_drain_is_not_begun_anew_for_another_reason():
    target = Target(pool="n", device="gpu-0", gpu_uuid=UUID_0)
    assert plan_rule(render_rule(target, "NoExecute", "first"), target, "NoExecute", "other") is None


def test_cordon_says_who_uses_it_and_stays(cluster, capsys):
    cluster.start("busy")

    cluster.run("cordon", "gpu-0")

    assert "gpu-0 is held by claim default/busy-gpu-" in capsys.readouterr().out


def test_cordon_s_dry_run_changes_nothing(cluster, capsys):
    code = cluster.run("cordon", "gpu-0", "--dry-run")

    assert (code, cluster.effects(), "would be cordoned" in capsys.readouterr().out) == (0, {}, True)


def test_uncordon_gives_the_devices_back(cluster):
    cluster.run("cordon", "gpu-0")

    assert (cluster.run("uncordon", "gpu-0"), cluster.effects()) == (0, {})


def test_uncordon_leaves_other_gpus_cordoned(cluster):
    cluster.run("cordon", "gpu-0")
    cluster.run("cordon", "gpu-1")

    cluster.run("uncordon", "gpu-0")

    assert cluster.effects() == {"gpu-1": "NoSchedule"}


def test_uncordon_finds_a_gpu_that_is_published_no_longer(cluster):
    cluster.run("cordon", "gpu-0")
    (only,) = cluster.kube.list(RESOURCE_SLICES).items
    cluster.kube.delete(RESOURCE_SLICES, only["metadata"]["name"])

    assert (cluster.run("uncordon", UUID_0), cluster.effects()) == (0, {})


def test_uncordon_s_dry_run_changes_nothing(cluster):
    cluster.run("cordon", "gpu-1")

    assert (cluster.run("uncordon", "gpu-1", "--dry-run"), cluster.effects()) == (0, {"gpu-1": "NoSchedule"})


def test_uncordon_of_what_is_not_cordoned_says_so(cluster, capsys):
    code = cluster.run("uncordon", "gpu-0")

    assert (code, "'gpu-0' is not cordoned" in capsys.readouterr().err) == (1, True)


def test_drain_without_yes_changes_nothing_and_names_the_pods(cluster, manager, capsys):
    cluster.start("busy")

    code = cluster.run("drain", "gpu-0")

    assert (code, cluster.effects()) == (1, {})
    assert "run it again with --yes to delete default/busy" in capsys.readouterr().err


def test_drain_s_dry_run_shows_what_the_control_plane_counts(cluster, manager, capsys):
    cluster.start("busy")

    code = cluster.run("drain", "gpu-0", "--dry-run")

    said = capsys.readouterr().out
    assert (code, cluster.effects()) == (0, {})
    assert "1 allocated device selected. 1 pod would be evicted in 1 namespace if the effect was NoExecute." in said


def test_drain_s_dry_run_does_not_lift_a_cordon(cluster, manager):
    cluster.run("cordon", "gpu-0")

    cluster.run("drain", "gpu-0", "--dry-run")

    assert set(cluster.effects().values()) == {"NoSchedule"}


def test_drain_ends_the_pods_and_returns_when_they_are_gone(cluster, manager):
    cluster.start("busy")

    code = cluster.run("drain", "gpu-0", "--yes")

    assert (code, cluster.kube.list(PODS).items) == (0, ())


def test_drain_leaves_pods_on_other_gpus_alone(cluster, manager):
    cluster.run("cordon", "gpu-0")
    cluster.start("other")
    cluster.run("drain", "gpu-0", "--yes")

    assert "deletionTimestamp" not in cluster.control.pod("other")["metadata"]


def test_drain_makes_a_cordon_a_drain(cluster, manager):
    cluster.run("cordon", "gpu-0")

    cluster.run("drain", "gpu-0", "--yes")

    assert set(cluster.effects().values()) == {"NoExecute"}


def test_drain_leaves_pods_that_bear_the_taint_and_does_not_wait_for_them(cluster, manager, capsys):
    cluster.start("bears", tolerations=[{"operator": "Exists", "effect": "NoExecute"}])

    code = cluster.run("drain", "gpu-0", "--yes")

    assert (code, "bears the taint for ever" in capsys.readouterr().out) == (0, True)


def test_drain_says_what_is_still_held_when_its_time_is_over(cluster, capsys):
    stop, thread = cluster.run_manager(ending=False)
    cluster.start("busy")

    code = cluster.run("drain", "gpu-0", "--yes", "--timeout", "0.5")
    stop.set()
    thread.join(10)

    assert (code, "still held: gpu-0 by default/busy" in capsys.readouterr().err) == (1, True)


def test_drain_is_json_for_machines(cluster, manager, capsys):
    cluster.start("busy")

    cluster.run("drain", "gpu-0", "--dry-run", "-o", "json")

    shown = json.loads(capsys.readouterr().out)
    claim = shown["uses"][0].pop("claim")
    uses = [{"device": "gpu-0", "pods": ["default/busy"], "tolerationSeconds": 0}]
    assert (claim.startswith("default/busy-gpu-"), shown["uses"]) == (True, uses)


def test_cordon_is_json_with_the_rule_of_each_device(cluster, capsys):
    cluster.run("cordon", "gpu-0", "--dry-run", "-o", "json")

    shown = json.loads(capsys.readouterr().out)["devices"]
    assert [(one["device"], sorted(one)) for one in shown] == [
        (name, ["device", "gpuUUID", "pool", "rule"]) for name in ("gpu-0", *PARTS)
    ]


def test_an_api_server_that_is_away_for_a_moment_is_asked_again(cluster):
    cluster.flaky.inject(unavailable(2, "create"))

    assert (cluster.run("cordon", "gpu-1"), cluster.effects()) == (0, {"gpu-1": "NoSchedule"})


def test_a_rule_whose_answer_was_lost_is_made_once(cluster):
    cluster.flaky.inject(unavailable(1, "create", after=True))

    assert (cluster.run("cordon", "gpu-1"), cluster.effects()) == (0, {"gpu-1": "NoSchedule"})


def test_an_older_api_server_is_named(cluster, capsys):
    error = ApiNotFound(404, "NotFound", "the server could not find the requested resource")
    cluster.flaky.inject(Fault(calls=10, plural="devicetaintrules", error=error))

    code = cluster.run("cordon", "gpu-0")

    assert (code, "that takes Kubernetes 1.37" in capsys.readouterr().err) == (1, True)


def test_an_interrupted_cordon_goes_on_where_it_was(cluster):
    cluster.kube.create(DEVICE_TAINT_RULES, render_rule(TARGET, "NoSchedule", "maintenance"))

    cluster.run("cordon", "gpu-0")

    assert until(lambda: cluster.effects() == dict.fromkeys(["gpu-0", *PARTS], "NoSchedule"))
