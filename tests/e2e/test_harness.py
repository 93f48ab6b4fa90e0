"""The cluster itself: what the other scenarios take for granted."""

from __future__ import annotations

import json

import pytest
from e2e.harness.cluster import Cluster
from e2e.harness.identity import Identity
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from tesela.core.errors import ApiError
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import RESOURCE_SLICES, Json

GPUS = "h100-80gb"
ONE = render_template("one", render_claim_spec([render_request("core", profile="1g.10gb")]))


def test_a_pod_runs_to_its_end_and_reaches_the_service_address(namespace: Namespace) -> None:
    namespace.apply(render_pod("one", script="nc -w 5 10.96.0.1 443 < /dev/null && echo reached"))

    namespace.wait_succeeded("one")

    assert namespace.logs("one") == "reached\n"


def test_a_running_pod_takes_commands_and_ends_when_asked(namespace: Namespace) -> None:
    namespace.apply(render_pod("one"))
    namespace.wait_running("one")

    said = namespace.exec("one", "echo $((6 * 7))")

    assert said == "42\n"


def test_the_server_is_the_pinned_kubernetes(cluster: Cluster) -> None:
    assert cluster.kube.get_server_version() == "v1.37.2"


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("get", "resourceclaims.resource.k8s.io", True),
        ("list", "resourceslices.resource.k8s.io", True),
        ("create", "resourceslices.resource.k8s.io", True),
        ("list", "resourceclaims.resource.k8s.io", False),
        ("list", "secrets", False),
        ("create", "pods", False),
    ],
)
def test_the_shipped_account_may_do_what_the_driver_needs_and_no_more(
    cluster: Cluster, verb: str, resource: str, allowed: bool
) -> None:
    account = "system:serviceaccount:tesela:tesela-node-plugin"
    review: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": {"verb": verb, **_group(resource)}},
    }

    answer = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review)))

    assert bool(answer["status"].get("allowed")) is allowed


def test_the_pod_bound_token_may_write_slices_of_its_own_node(identity: Identity) -> None:
    kube = KubeClient(load_config(str(identity.kubeconfig)))
    slice_ = kube.create(RESOURCE_SLICES, _slice("node1", "gpu.nvidia.com"))

    kube.delete(RESOURCE_SLICES, slice_["metadata"]["name"])


def test_a_node_that_begins_anew_serves_whatever_a_scenario_broke(node: Node, work: Namespace) -> None:
    work.apply(ONE, render_pod("before", templates={"gpu": "one"}))
    work.wait_running("before")
    node.driver.kill()
    node.cluster.stop_kubelet()

    node.renew()
    leftovers = node.list_leftovers()
    work.apply(render_pod("after", templates={"gpu": "one"}))
    work.wait_running("after")

    assert leftovers == []


@pytest.mark.parametrize(("node_name", "driver"), [("node2", "gpu.nvidia.com"), ("node1", "other.example.com")])
def test_slices_of_another_node_or_driver_are_refused(identity: Identity, node_name: str, driver: str) -> None:
    kube = KubeClient(load_config(str(identity.kubeconfig)))

    with pytest.raises(ApiError, match="may write only ResourceSlices"):
        kube.create(RESOURCE_SLICES, _slice(node_name, driver))


def _group(resource: str) -> dict[str, str]:
    plural, _, group = resource.partition(".")
    return {"resource": plural, "group": group}


def _slice(node: str, driver: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "tried-"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }
