"""`tesela uninstall-check` against an embedded cluster behind HTTP."""

from __future__ import annotations

import json

import pytest
from contract.kube_objects import build, resource_slice
from tesela.cli.main import main
from tesela.core.cordon import Target, render_rule
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.server import ApiServer
from tesela.edge.kube.port import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES

DRIVER = "gpu.nvidia.com"


class Cluster:
    def __init__(self, folder):
        self.kube = EmbeddedCluster()
        self.server = ApiServer(self.kube)
        self.kubeconfig = str(self.server.write_kubeconfig(folder / "kubeconfig"))
        for node in ("node-a", "node-b"):
            self.kube.create(NODES, build(NODES, node))
            device = {"name": "gpu-0", "attributes": {"placementStart": {"int": 0}}}
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            self.kube.create(
                RESOURCE_SLICES, resource_slice(name=f"slice-{node}", nodeName=node, pool=pool, devices=[device])
            )

    def hold(self, name, node, *, prepared=False):
        requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]
        claim = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": requests}}}
        made = self.kube.create(RESOURCE_CLAIMS, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim})
        device = {"driver": DRIVER, "pool": node, "device": "gpu-0"}
        status = {"allocation": {"devices": {"results": [{"request": "gpu", **device}]}}}
        made["status"] = {**status, **({"devices": [device]} if prepared else {})}
        self.kube.replace_status(RESOURCE_CLAIMS, made)

    def check(self, *arguments):
        return main(["uninstall-check", "--kubeconfig", self.kubeconfig, *arguments])

    def close(self):
        self.server.close()
        self.kube.close()


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def test_a_cluster_without_claims_may_lose_its_driver(cluster, capsys):
    assert (cluster.check(), "it can be removed" in capsys.readouterr().out) == (0, True)


def test_claims_are_a_table_by_node(cluster, capsys):
    cluster.hold("first", "node-b", prepared=True)
    cluster.hold("second", "node-a")
    code = cluster.check()

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (code, rows[:3]) == (
        1,
        [
            ["NODE", "CLAIM", "STATE", "PODS", "DEVICES"],
            ["node-a", "default/second", "allocated", "-", "gpu-0"],
            ["node-b", "default/first", "prepared", "-", "gpu-0"],
        ],
    )


def test_the_table_ends_with_what_to_do(cluster, capsys):
    cluster.hold("first", "node-b")
    cluster.check()

    assert capsys.readouterr().out.splitlines()[-1].startswith("1 claim on 1 node needs the driver: end the pods")


def test_one_node_is_asked_about_alone(cluster):
    cluster.hold("first", "node-b")

    assert (cluster.check("--node", "node-a"), cluster.check("--node", "node-b")) == (0, 1)


def test_machines_are_told_all_of_it(cluster, capsys):
    cluster.hold("first", "node-b", prepared=True)
    cluster.check("-o", "json")

    report = json.loads(capsys.readouterr().out)
    (held,) = report["held"]
    assert (report["removable"], held["node"], held["state"], held["servedBy"]) == (
        False,
        "node-b",
        "prepared",
        "tesela",
    )


def test_rules_of_a_cordon_are_named_for_they_outlive_the_driver(cluster, capsys):
    rule = render_rule(Target(pool="node-a", device="gpu-0", gpu_uuid="GPU-1"), "NoSchedule", "test")
    cluster.kube.create(DEVICE_TAINT_RULES, {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", **rule})
    cluster.check()

    assert "1 DeviceTaintRule of a cordon stays" in capsys.readouterr().out


def test_an_api_that_does_not_answer_is_no_consent(cluster, capsys):
    cluster.server.close()
    code = main(["uninstall-check", "--kubeconfig", "/nowhere"])

    assert (code, capsys.readouterr().err.startswith("tesela uninstall-check: ")) == (1, True)
