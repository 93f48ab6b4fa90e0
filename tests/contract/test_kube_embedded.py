"""What only the embedded cluster offers: other releases and gates, garbage collection, binding, a bounded history."""

from __future__ import annotations

from threading import Thread

import pytest
from contract.kube_backends import refusal
from contract.kube_objects import NAMESPACE, claim, counters, device, node, pod, request, resource_slice
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.errors import ApiConflict, ApiGone, ApiNotFound
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.kube.port import NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Json

SET = {"name": "set", "counters": counters()}
CONSUMES = [{"counterSet": "set", "counters": counters()}]
TAINTS = [{"key": "tesela/test", "effect": "NoSchedule"}]


@pytest.fixture
def cluster():
    made = EmbeddedCluster()
    yield made
    made.close()


def owned_by(owner: Json) -> Json:
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    metadata = owner["metadata"]
    return {"ownerReferences": [{**reference, "name": metadata["name"], "uid": metadata["uid"]}]}


# --- releases and gates ----------------------------------------------------------------------------------------------


def test_without_gates_counters_vanish():
    cluster = EmbeddedCluster(gates=frozenset())
    kept = cluster.create(RESOURCE_SLICES, resource_slice(devices=None, sharedCounters=[SET]))
    assert "sharedCounters" not in kept["spec"]


def test_without_gates_a_devices_consumption_and_taints_vanish():
    cluster = EmbeddedCluster(gates=frozenset())
    written = resource_slice(devices=[device(consumesCounters=CONSUMES, taints=TAINTS)])
    kept = cluster.create(RESOURCE_SLICES, written)["spec"]["devices"][0]
    assert ("consumesCounters" in kept, "taints" in kept) == (False, False)


def test_without_gates_more_than_64_plain_devices_fit():
    cluster = EmbeddedCluster(gates=frozenset())
    written = resource_slice(devices=[device(f"gpu-{i}", taints=TAINTS) for i in range(128)])
    assert len(cluster.create(RESOURCE_SLICES, written)["spec"]["devices"]) == 128


def test_one_gate_may_be_open_alone():
    cluster = EmbeddedCluster(gates=frozenset({"DRADeviceTaints"}))
    written = resource_slice(devices=[device(consumesCounters=CONSUMES, taints=TAINTS)])
    kept = cluster.create(RESOURCE_SLICES, written)["spec"]["devices"][0]
    assert ("consumesCounters" in kept, "taints" in kept) == (False, True)


@pytest.mark.parametrize(("version", "kept"), [("v1.34.4", False), ("v1.35.4", False), ("v1.36.3", True)])
def test_taints_are_kept_by_default_from_1_36(version, kept):
    cluster = EmbeddedCluster(server_version=version, gates=None)
    found = cluster.create(RESOURCE_SLICES, resource_slice(devices=[device(taints=TAINTS)]))["spec"]["devices"][0]
    assert ("taints" in found) == kept


def combined(version: str) -> EmbeddedCluster:
    return EmbeddedCluster(server_version=version, gates=frozenset({"DRAPartitionableDevices"}))


def test_below_1_35_counters_and_devices_share_a_slice():
    written = resource_slice(sharedCounters=[SET], devices=[device(consumesCounters=CONSUMES)])
    kept = combined("v1.34.4").create(RESOURCE_SLICES, written)["spec"]
    assert ("sharedCounters" in kept, "devices" in kept) == (True, True)


def test_below_1_35_a_device_may_not_consume_another_slices_counters():
    cluster = combined("v1.34.4")
    error = refusal(
        lambda: cluster.create(RESOURCE_SLICES, resource_slice(devices=[device(consumesCounters=CONSUMES)]))
    )
    assert (error.status, "consumesCounters[0].counterSet: " in error.message) == (422, True)


def test_from_1_35_counters_and_devices_are_apart():
    written = resource_slice(sharedCounters=[SET], devices=[device(consumesCounters=CONSUMES)])
    assert refusal(lambda: combined("v1.35.4").create(RESOURCE_SLICES, written)).status == 422


def test_below_1_37_a_pools_name_does_not_select():
    cluster = EmbeddedCluster(server_version="v1.36.3")
    assert refusal(lambda: cluster.list(RESOURCE_SLICES, field_selector="spec.pool.name=a")).status == 400


@pytest.mark.parametrize("version", ["1.37.2", "v2.0.0", "v1.37"])
def test_a_server_version_has_three_numbers(version):
    with pytest.raises(ValueError, match="server version"):
        EmbeddedCluster(server_version=version)


# --- garbage collection ----------------------------------------------------------------------------------------------


def test_a_node_takes_its_slices_along(cluster):
    owner = cluster.create(NODES, node("node-a"))
    cluster.create(RESOURCE_SLICES, resource_slice(metadata=owned_by(owner)))
    cluster.delete(NODES, "node-a")
    assert cluster.list(RESOURCE_SLICES).items == ()


def test_an_object_of_an_absent_owner_goes(cluster):
    owner = cluster.create(NODES, node("node-a"))
    cluster.delete(NODES, "node-a")
    cluster.create(RESOURCE_SLICES, resource_slice(metadata=owned_by(owner)))
    assert cluster.list(RESOURCE_SLICES).items == ()


def test_one_of_two_owners_is_enough(cluster):
    owners = [cluster.create(NODES, node(name)) for name in ("node-a", "node-b")]
    references = [owned_by(owner)["ownerReferences"][0] for owner in owners]
    cluster.create(RESOURCE_SLICES, resource_slice(metadata={"ownerReferences": references}))
    cluster.delete(NODES, "node-a")
    assert len(cluster.list(RESOURCE_SLICES).items) == 1


def test_a_finalizer_holds_collected_garbage(cluster):
    owner = cluster.create(PODS, pod("a"))
    metadata = {**owned_by(owner), "finalizers": ["example.com/hold"]}
    cluster.create(RESOURCE_CLAIMS, claim("held", metadata=metadata))
    cluster.delete(PODS, "a", NAMESPACE)
    assert "deletionTimestamp" in cluster.get(RESOURCE_CLAIMS, "held", NAMESPACE)["metadata"]


def test_an_owner_of_a_kind_that_is_not_kept_counts_as_present(cluster):
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
    cluster.create(RESOURCE_SLICES, resource_slice(metadata={"ownerReferences": [owner]}))
    assert len(cluster.list(RESOURCE_SLICES).items) == 1


def test_a_namespace_takes_its_objects_along(cluster):
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    cluster.create(RESOURCE_CLAIMS, claim("a", metadata={"namespace": "team"}))
    cluster.delete(NAMESPACES, "team")
    assert cluster.list(RESOURCE_CLAIMS).items == ()


# --- binding, history, threads ---------------------------------------------------------------------------------------


def test_bind_sets_node_and_condition(cluster):
    cluster.bind(cluster.create(PODS, pod("a")), "node-a")
    bound = cluster.get(PODS, "a", NAMESPACE)
    assert (bound["spec"]["nodeName"], bound["status"]["conditions"][0]["type"]) == ("node-a", "PodScheduled")


def test_bind_twice_is_a_conflict(cluster):
    created = cluster.create(PODS, pod("a"))
    cluster.bind(created, "node-a")
    assert type(refusal(lambda: cluster.bind(created, "node-b"))) is ApiConflict


def test_bind_of_a_namesake_is_a_conflict(cluster):
    created = cluster.create(PODS, pod("a"))
    cluster.delete(PODS, "a", NAMESPACE)
    cluster.create(PODS, pod("a"))
    assert type(refusal(lambda: cluster.bind(created, "node-a"))) is ApiConflict


def test_a_watch_from_before_the_history_is_gone():
    cluster = EmbeddedCluster(history_size=3)
    for index in range(5):
        cluster.create(RESOURCE_CLAIMS, claim(f"claim-{index}"))
    with pytest.raises(ApiGone):
        next(cluster.watch(RESOURCE_CLAIMS, resource_version="2", timeout_s=1))


def test_a_watch_from_the_edge_of_the_history_is_whole():
    cluster = EmbeddedCluster(history_size=3)
    versions = [cluster.create(RESOURCE_CLAIMS, claim(f"c-{i}"))["metadata"]["resourceVersion"] for i in range(5)]
    stream = cluster.watch(RESOURCE_CLAIMS, resource_version=versions[1], timeout_s=0.05)
    added = [event.object["metadata"]["name"] for event in stream if event.type == "ADDED"]
    assert added == ["c-2", "c-3", "c-4"]


def test_close_ends_a_watch_that_waits(cluster):
    version = cluster.list(RESOURCE_CLAIMS).resource_version
    seen = []
    watch = cluster.watch(RESOURCE_CLAIMS, resource_version=version, timeout_s=60)
    thread = Thread(target=lambda: seen.extend(event.type for event in watch))
    thread.start()
    cluster.close()
    thread.join(10)
    assert seen == ["BOOKMARK"]


def test_what_a_caller_does_to_an_object_stays_with_the_caller(cluster):
    created = cluster.create(RESOURCE_CLAIMS, claim("a"))
    created["spec"]["devices"]["requests"].append(request("other"))
    assert len(cluster.get(RESOURCE_CLAIMS, "a", NAMESPACE)["spec"]["devices"]["requests"]) == 1


def test_of_many_writers_each_version_lets_one_through(cluster):
    created = cluster.create(RESOURCE_SLICES, resource_slice("contended"))
    outcomes = []

    def write(index: int) -> None:
        try:
            metadata = {**created["metadata"], "labels": {"i": str(index)}}
            cluster.replace(RESOURCE_SLICES, {**created, "metadata": metadata})
            outcomes.append("written")
        except ApiConflict:
            outcomes.append("conflict")

    threads = [Thread(target=write, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(outcomes) == ["conflict"] * 7 + ["written"]


STEPS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["create", "run", "fail", "delete"])))


def take(cluster: EmbeddedCluster, name: str, verb: str) -> None:
    """One step on one pod, nothing where it does not apply."""
    try:
        if verb == "create":
            cluster.create(PODS, pod(name))
        elif verb == "delete":
            cluster.delete(PODS, name, NAMESPACE)
        else:
            found = cluster.get(PODS, name, NAMESPACE)
            phase = "Running" if verb == "run" else "Failed"
            cluster.replace_status(PODS, {**found, "status": {**found["status"], "phase": phase}})
    except (ApiConflict, ApiNotFound):
        return


@given(before=STEPS, after=STEPS, phase=st.sampled_from(["Pending", "Running", "Failed"]))
def test_a_list_and_its_watch_together_are_the_next_list(before, after, phase):
    cluster, selector = EmbeddedCluster(), f"status.phase={phase}"
    for step in before:
        take(cluster, *step)
    first = cluster.list(PODS, NAMESPACE, selector)
    for step in after:
        take(cluster, *step)
    known = {item["metadata"]["name"]: item for item in first.items}
    for event in cluster.watch(PODS, NAMESPACE, selector, resource_version=first.resource_version, timeout_s=0):
        if event.type == "DELETED":
            del known[event.object["metadata"]["name"]]
        elif event.type != "BOOKMARK":
            known[event.object["metadata"]["name"]] = event.object
    assert tuple(known[name] for name in sorted(known)) == cluster.list(PODS, NAMESPACE, selector).items


def test_a_fresh_cluster_has_its_namespaces(cluster):
    assert {item["metadata"]["name"] for item in cluster.list(NAMESPACES).items} == {"default", "kube-system"}


def test_an_unknown_object_is_not_found(cluster):
    assert type(refusal(lambda: cluster.get(NODES, "absent"))) is ApiNotFound
