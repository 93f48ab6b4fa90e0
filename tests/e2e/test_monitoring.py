"""A real Prometheus scrapes a real driver: every panel and every alert finds what it asks for, by the labels it uses.

GPU 0 holds a partition and GPU 1 is held whole; both are at work. GPU 1 has met an error that ECC cannot correct, and
one prepare failed before it went well. The last two tests change that: a storm of Xids, and the repair of GPU 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim, render_claim_spec, render_pod, render_request
from e2e.harness.processes import wait_until
from e2e.harness.prometheus import MONITORING, Prometheus
from tesela.edge.kube.port import Json
from tesela.edge.simulator.admin import SimulatorAdmin

GPUS = "h100-80gb*2"
ARGUMENTS = ("--metrics-port=9400", "--metrics-address=127.0.0.1")
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
ON_GPU = 'device.attributes["gpu.nvidia.com"].index == {}'
SEEN_S = 30  # two scrapes, an evaluation, and a busy machine
VARIABLES = {"$__rate_interval": "10m", "$node": NODE, "$gpu": ".*", "$namespace": ".*", "$claim": ".*"}
BOARDS = ("tesela-fleet", "tesela-node")


def read_rules(file: str) -> list[Json]:
    """Every rule of a rule file that is shipped."""
    return [rule for group in yaml.safe_load((MONITORING / file).read_text())["groups"] for rule in group["rules"]]


RULES = read_rules("alerts.yaml")


def list_panels() -> Iterator[tuple[str, str, str]]:
    """Dashboard, title and query of every panel."""
    for board in BOARDS:
        for panel in json.loads((MONITORING / f"{board}.json").read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield board, panel["title"], target["expr"]


def fill(query: str) -> str:
    """A query as Grafana sends it, with the variables chosen."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


@dataclass(frozen=True, slots=True)
class Scene:
    """What the tests look at."""

    node: Node
    namespace: str
    prometheus: Prometheus

    def wait_series(self, expression: str) -> list[dict[str, str]]:
        """Until the query has series; their labels."""
        found: list[Json] = []

        def is_found() -> bool:
            found[:] = self.prometheus.query(expression)
            return bool(found)

        wait_until(f"{expression} returns data", is_found, timeout_s=SEEN_S)
        return [one["metric"] for one in found]


def work_on(node: Node) -> None:
    """Processes of both claims, with memory."""
    (seen,) = node.simulator.list_partitions()
    inside = ("--gi", str(seen.gi_id), "--ci", str(seen.ci_id))
    node.simulator.run("busy", "0", "4711", *inside, "--memory-mib", "1024")
    node.simulator.run("busy", "1", "4712", "--memory-mib", "2048")


@pytest.fixture(scope="module")
def scene(cluster: Cluster, node: Node) -> Iterator[Scene]:
    work = Namespace(cluster, "watched")
    work.create()
    prometheus = Prometheus(cluster, "127.0.0.1:9400")
    node.simulator.run("fail", CREATE, "UNKNOWN")
    small = render_request("core", profile="1g.10gb", selector=ON_GPU.format(0))
    big = render_request("core", device_class="gpu.nvidia.com", selector=ON_GPU.format(1))
    work.apply(
        render_claim("small", render_claim_spec([small])),
        render_claim("big", render_claim_spec([big])),
        render_pod("one", claims={"gpu": "small"}),
        render_pod("two", claims={"gpu": "big"}),
    )
    work.wait_running("one", "two")
    work_on(node)
    node.simulator.run("xid", "1", "31")
    node.simulator.run("ecc", "1", "--uncorrected", "1")
    yield Scene(node, work.name, prometheus)
    node.simulator.run("idle", "0", "4711")
    node.simulator.run("idle", "1", "4712")
    work.clear()
    work.remove()
    prometheus.stop()


@pytest.mark.parametrize(
    ("board", "title", "query"), [pytest.param(*one, id=f"{one[0]}: {one[1]}") for one in list_panels()]
)
def test_every_panel_shows_data(scene: Scene, board: str, title: str, query: str) -> None:
    assert scene.wait_series(fill(query))


def list_selectors() -> set[str]:
    """What alerts ask for, with its labels. A request that failed has no series before it failed."""
    found = {
        name for rule in RULES for name in re.findall(r"\b(?:(?:tesela|process)_\w+|up\b)(?:{[^}]*})?", rule["expr"])
    }
    return {re.sub(r'code=~"[^"]*"', 'code!=""', one) for one in found}


@pytest.mark.parametrize("selector", sorted(list_selectors()))
def test_whatever_an_alert_asks_for_is_there(scene: Scene, selector: str) -> None:
    assert scene.wait_series(selector)


def test_every_rule_is_evaluated_without_error(scene: Scene) -> None:
    def list_bad() -> list[str]:
        return [
            f"{rule['name']}: {rule.get('lastError', rule['health'])}" for rule in rules() if rule["health"] != "ok"
        ]

    rules = scene.prometheus.list_rules
    wait_until("every rule is evaluated", lambda: len(rules()) >= len(RULES) and not list_bad(), timeout_s=SEEN_S)

    assert list_bad() == []


def test_the_fault_fires_its_alert_and_no_other(scene: Scene) -> None:
    wait_until("an alert fires", scene.prometheus.list_firing, timeout_s=SEEN_S)

    firing = {name: [one["gpu"] for one in labels] for name, labels in scene.prometheus.list_firing().items()}

    assert firing == {"TeselaGpuUnhealthy": ["gpu-1"]}


@pytest.mark.parametrize(("claim", "gpu", "profile"), [("small", "gpu-0", "1g.10gb"), ("big", "gpu-1", "")])
def test_memory_and_activity_are_told_by_claim(scene: Scene, claim: str, gpu: str, profile: str) -> None:
    labels = f'namespace="{scene.namespace}",claim="{claim}"'

    (memory,) = scene.wait_series(f"tesela_partition_memory_used_bytes{{{labels}}}")
    (activity,) = scene.wait_series(f"tesela_sm_activity_ratio{{{labels}}}")

    told = {"node": NODE, "gpu": gpu, "profile": profile or None}
    assert [{key: one.get(key) for key in told} for one in (memory, activity)] == [told, told]


def test_memory_is_what_the_processes_hold(scene: Scene) -> None:
    assert scene.wait_series(f'tesela_partition_memory_used_bytes{{claim="small"}} == {1024 << 20}')


def test_memory_of_a_whole_gpu_has_what_its_driver_keeps_beside(scene: Scene) -> None:
    """As nvmlDeviceGetMemoryInfo tells it."""
    used = 'tesela_partition_memory_used_bytes{claim="big"}'

    assert scene.wait_series(f"{used} > {2048 << 20} < {3072 << 20}")


def test_a_busy_partition_shows_its_activity(scene: Scene) -> None:
    assert scene.wait_series('tesela_sm_activity_ratio{claim="small"} > 0 <= 1')


def test_the_failed_prepare_is_counted_by_its_cause(scene: Scene) -> None:
    failed = 'sum by (cause) (increase(tesela_claim_failures_total{verb="prepare"}[10m])) > 0'

    assert "nvml" in [one["cause"] for one in scene.wait_series(failed)]


@pytest.mark.parametrize("name", sorted({rule["record"] for rule in read_rules("old-names.yaml")}))
def test_every_old_name_is_recorded(scene: Scene, name: str) -> None:
    assert scene.wait_series(name)


def test_old_names_tell_the_same(scene: Scene) -> None:
    (series,) = scene.wait_series('DCGM_FI_DEV_FB_USED{claim="small"}')

    (seen,) = scene.node.simulator.list_partitions()
    named = {key: series[key] for key in ("UUID", "gpu", "GPU_I_PROFILE", "Hostname", "namespace")}
    assert named == {
        "UUID": seen.uuid,
        "gpu": "0",
        "GPU_I_PROFILE": "1g.10gb",
        "Hostname": NODE,
        "namespace": scene.namespace,
    }


def test_old_names_count_gpus_of_the_node(scene: Scene) -> None:
    """Of two GPUs one is ill, which the rules record a scrape and an evaluation later."""
    wanted = 'kube_node_status_{}{{node="node1",resource="nvidia_com_gpu"}} == {}'

    assert scene.wait_series(wanted.format("capacity", 2))
    assert scene.wait_series(wanted.format("allocatable", 1))


def test_a_storm_of_xids_fires_its_alert(scene: Scene) -> None:
    admin = SimulatorAdmin(scene.node.simulator.socket)
    for _ in range(60):
        admin.send({"op": "xid", "gpu": "0", "xid": 13})
    admin.close()

    wait_until("the alert fires", lambda: "TeselaXidStorm" in scene.prometheus.list_firing(), timeout_s=SEEN_S)

    assert [(one["gpu"], one["xid"]) for one in scene.prometheus.list_firing()["TeselaXidStorm"]] == [("gpu-0", "13")]


def test_the_alert_clears_when_the_gpu_is_repaired(scene: Scene) -> None:
    def fires() -> bool:
        return "TeselaGpuUnhealthy" in scene.prometheus.list_firing()

    wait_until("the alert fires", fires, timeout_s=SEEN_S)

    scene.node.simulator.run("idle", "1", "4712")
    scene.node.simulator.run("reset", "1")
    scene.node.simulator.run("busy", "1", "4712")

    wait_until("the alert clears", lambda: not fires(), timeout_s=SEEN_S)
