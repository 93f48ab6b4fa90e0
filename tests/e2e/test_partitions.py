"""Partitions and whole GPUs on two H100, whose MIG mode changes without a reset: the driver switches it by itself."""

from __future__ import annotations

from e2e.harness.node import Node
from e2e.harness.pods import (
    LIST_DEVICE_NODES,
    Namespace,
    render_claim,
    render_claim_spec,
    render_container,
    render_first_available,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import Json

GPUS = "h100-80gb*2"
ON_GPU_0 = 'device.attributes["gpu.nvidia.com"].index == 0'
UUIDS = "TESELA_GPU_CORE_UUIDS"


def whole(name: str = "core", **more: object) -> Json:
    return render_request(name, device_class="gpu.nvidia.com", **more)


def one(name: str = "core", **more: object) -> Json:
    return render_request(name, profile="1g.10gb", **more)


def at(profile: str, start: int) -> Json:
    selector = f'{ON_GPU_0} && device.attributes["gpu.nvidia.com"].placementStart == {start}'
    return render_request("core", profile=profile, selector=selector)


def template(name: str, *requests: Json, **more: object) -> Json:
    return render_template(name, render_claim_spec(requests, **more))


def pod(name: str, template_name: str, **more: object) -> Json:
    return render_pod(name, templates={"gpu": template_name}, **more)


def gpus_of(node: Node) -> list[int]:
    return [seen.gpu for seen in node.simulator.list_partitions()]


def test_seven_small_partitions_fill_a_gpu_and_the_eighth_waits_for_one_to_end(node: Node, work: Namespace) -> None:
    work.apply(template("whole", whole()), template("one", one()), pod("holder", "whole"))
    work.wait_running("holder")
    names = [f"pod-{number}" for number in range(7)]
    work.apply(*(pod(name, "one") for name in names))
    work.wait_running(*names)
    work.apply(pod("eighth", "one"))
    work.wait_unschedulable("eighth")

    work.end("pod-3")
    work.wait_running("eighth")

    assert gpus_of(node) == [1] * 7


def test_seven_neighbours_hold_seven_different_partitions(node: Node, work: Namespace) -> None:
    names = [f"pod-{number}" for number in range(7)]
    work.apply(template("one", one()), *(pod(name, "one") for name in names))
    work.wait_running(*names)

    uuids = {work.environment(name)[UUIDS] for name in names}

    assert uuids == {seen.uuid for seen in node.simulator.list_partitions()}


def test_a_whole_gpu_keeps_partitions_off_and_gives_way_to_them_in_mig_mode(node: Node, work: Namespace) -> None:
    work.apply(template("whole", whole(selector=ON_GPU_0)), template("one", one(selector=ON_GPU_0)))
    work.apply(pod("big", "whole"))
    work.wait_running("big")
    mode_before = node.simulator.get_mig_modes()[0]
    work.apply(pod("small", "one"))
    work.wait_unschedulable("small")

    work.end("big")
    work.wait_running("small")

    assert (mode_before, node.simulator.get_mig_modes()[0]) == (False, True)


def test_a_partition_keeps_the_whole_gpu_off_and_gives_way_to_it_out_of_mig_mode(node: Node, work: Namespace) -> None:
    work.apply(template("whole", whole(selector=ON_GPU_0)), template("one", one(selector=ON_GPU_0)))
    work.apply(pod("small", "one"))
    work.wait_running("small")
    mode_before = node.simulator.get_mig_modes()[0]
    work.apply(pod("big", "whole"))
    work.wait_unschedulable("big")

    work.end("small")
    work.wait_running("big")

    assert (mode_before, node.simulator.get_mig_modes()[0]) == (True, False)


def test_a_whole_gpu_shows_its_node_and_uuid_and_no_capabilities(node: Node, work: Namespace) -> None:
    work.apply(template("whole", whole(selector=ON_GPU_0)), pod("big", "whole"))
    work.wait_running("big")

    shown = set(work.exec("big", LIST_DEVICE_NODES).split())

    nodes = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", f"nvidia{node.simulator.get_minor(0)}"}
    assert (shown, work.environment("big")[UUIDS]) == (nodes, node.simulator.list_gpus()[0])


def test_two_claims_of_one_pod_give_two_partitions(node: Node, work: Namespace) -> None:
    work.apply(template("one", one()), template("two", render_request("core", profile="2g.20gb")))
    work.apply(render_pod("both", templates={"left": "one", "right": "two"}))
    work.wait_running("both")
    environment = work.environment("both")

    told = {environment["TESELA_LEFT_CORE_UUIDS"], environment["TESELA_RIGHT_CORE_UUIDS"]}

    assert told == {seen.uuid for seen in node.simulator.list_partitions()}


def test_containers_see_only_the_claim_that_they_name(node: Node, work: Namespace) -> None:
    work.apply(template("one", one()), template("two", render_request("core", profile="2g.20gb")))
    containers = [render_container("left", claims=["left"]), render_container("right", claims=["right"])]
    work.apply(render_pod("both", templates={"left": "one", "right": "two"}, containers=containers))
    work.wait_running("both")

    shown = {
        node.find_partition(work.environment("both", container=side)[f"TESELA_{side.upper()}_CORE_UUIDS"]).profile: set(
            work.exec("both", LIST_DEVICE_NODES, container=side).split()
        )
        for side in ("left", "right")
    }

    partitions = node.simulator.list_partitions()
    assert shown == {seen.profile: node.simulator.list_device_nodes(seen) for seen in partitions}


def test_containers_see_only_the_request_that_they_name(node: Node, work: Namespace) -> None:
    work.apply(template("pair", one("first"), render_request("second", profile="2g.20gb")))
    containers = [
        render_container(side, claims=[{"name": "gpu", "request": side}]) for side in ("first", "second")
    ]  # fmt: skip
    work.apply(render_pod("both", templates={"gpu": "pair"}, containers=containers))
    work.wait_running("both")

    shown = {
        node.find_partition(work.environment("both", container=side)[f"TESELA_GPU_{side.upper()}_UUIDS"]).profile: set(
            work.exec("both", LIST_DEVICE_NODES, container=side).split()
        )
        for side in ("first", "second")
    }

    partitions = node.simulator.list_partitions()
    assert shown == {seen.profile: node.simulator.list_device_nodes(seen) for seen in partitions}


def test_two_pods_share_the_partition_of_one_claim_until_the_last_ends(node: Node, work: Namespace) -> None:
    work.apply(render_claim("shared", render_claim_spec([one()])))
    work.apply(*(render_pod(name, claims={"gpu": "shared"}) for name in ("early", "late")))
    work.wait_running("early", "late")
    early = work.environment("early")["TESELA_SHARED_CORE_UUIDS"]

    work.end("early")

    assert {early, work.environment("late")["TESELA_SHARED_CORE_UUIDS"]} == {
        seen.uuid for seen in node.simulator.list_partitions()
    }


def test_a_claim_serves_one_pod_after_the_other(node: Node, work: Namespace) -> None:
    work.apply(render_claim("reused", render_claim_spec([one()])))
    for name in ("first", "second"):
        work.apply(render_pod(name, claims={"gpu": "reused"}, script="echo $TESELA_REUSED_CORE_UUIDS"))
        work.wait_succeeded(name)
        node.wait_clean()

    assert work.logs("first") != work.logs("second")


def test_an_init_container_uses_the_claim_before_the_others_start(node: Node, work: Namespace) -> None:
    work.apply(template("one", one()))
    script = f"test -c /dev/nvidia{node.simulator.get_minor(0)} && echo ${UUIDS}"
    init = [render_container("init", claims=["gpu"], script=script)]
    work.apply(render_pod("staged", templates={"gpu": "one"}, init_containers=init))
    work.wait_running("staged")

    said = work.logs("staged", container="init").strip()

    assert said == work.environment("staged")[UUIDS]


def test_a_claim_that_no_container_names_is_prepared_too(node: Node, work: Namespace) -> None:
    work.apply(template("one", one()))
    work.apply(pod("idle", "one", containers=[render_container("main")]))
    work.wait_running("idle")

    assert [seen.profile for seen in node.simulator.list_partitions()] == ["1g.10gb"]


def test_the_first_available_profile_is_taken(node: Node, work: Namespace) -> None:
    work.apply(template("either", render_first_available("core", "3g.40gb", "1g.10gb")), pod("lucky", "either"))
    work.wait_running("lucky")

    assert work.environment("lucky")["TESELA_GPU_CORE_PROFILES"] == "3g.40gb"


def test_the_next_profile_is_taken_where_the_first_has_no_room(node: Node, work: Namespace) -> None:
    everything = render_request("core", device_class="gpu.nvidia.com", selector=f"!({ON_GPU_0})")
    work.apply(template("rest", everything), template("low", at("1g.10gb", 0)), template("high", at("1g.10gb", 4)))
    work.apply(pod("rest", "rest"), pod("low", "low"), pod("high", "high"))
    work.wait_running("rest", "low", "high")
    work.apply(template("either", render_first_available("core", "3g.40gb", "1g.10gb")), pod("modest", "either"))
    work.wait_running("modest")

    assert work.environment("modest")["TESELA_GPU_CORE_PROFILES"] == "1g.10gb"


def test_partitions_that_must_share_a_parent_do(node: Node, work: Namespace) -> None:
    work.apply(template("four", at("4g.40gb", 0)), template("two", at("2g.20gb", 4)))
    work.apply(pod("four", "four"), pod("two", "two"))
    work.wait_running("four", "two")
    requests = [one("small"), render_request("large", profile="2g.20gb")]
    work.apply(template("pair", *requests, same=["gpu.nvidia.com/parentUUID"]), pod("pair", "pair"))
    work.wait_running("pair")
    environment = work.environment("pair")

    parents = {node.find_partition(environment[f"TESELA_GPU_{name}_UUIDS"]).gpu for name in ("SMALL", "LARGE")}

    assert parents == {1}


def test_an_extended_resource_gives_a_whole_gpu(node: Node, work: Namespace) -> None:
    container = render_container("main")
    for side in ("requests", "limits"):
        container["resources"].setdefault(side, {})["nvidia.com/gpu"] = "1"
    work.apply(render_pod("plain", containers=[container]))
    work.wait_running("plain")

    shown = set(work.exec("plain", LIST_DEVICE_NODES).split())

    assert f"nvidia{node.simulator.get_minor(0)}" in shown


def test_a_restarting_container_keeps_its_partition(node: Node, work: Namespace) -> None:
    work.apply(template("one", one()))
    again = pod("again", "one", script=f"echo ${UUIDS}; sleep 1; exit 1")
    again["spec"]["restartPolicy"] = "Always"
    work.apply(again)
    work.wait_restarted("again")

    (seen,) = node.simulator.list_partitions()
    wait_until("the container that started again says it", lambda: seen.uuid in work.logs("again"), timeout_s=30)


def test_admin_access_sees_a_free_gpu_and_changes_nothing(node: Node, work: Namespace) -> None:
    modes = node.simulator.get_mig_modes()
    work.apply(template("watch", whole(admin_access=True)), pod("watcher", "watch"))
    work.wait_running("watcher")

    assert (node.simulator.get_mig_modes(), node.simulator.list_partitions()) == (modes, [])
