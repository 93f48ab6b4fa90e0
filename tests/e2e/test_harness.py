"""The cluster itself: what the other scenarios take for granted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.harness.cluster import Cluster
from e2e.harness.identity import Identity
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template
from e2e.harness.processes import wait_until
from tesela.core.errors import ApiError
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import RESOURCE_CLAIMS, RESOURCE_SLICES, Json

GPUS = "h100-80gb"
_DRA, _RBAC = "resource.k8s.io", "rbac.authorization.k8s.io"
SPEC = render_claim_spec([render_request("core", profile="1g.10gb")])
ONE = render_template("one", SPEC)


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
        ("patch", "resourceclaims/status.resource.k8s.io", True),
        ("associated-node:patch", "resourceclaims/driver.resource.k8s.io", True),
        ("create", "events.events.k8s.io", True),
        ("list", "resourceclaims.resource.k8s.io", False),
        ("patch", "resourceclaims.resource.k8s.io", False),
        ("update", "resourceclaims/status.resource.k8s.io", False),
        ("patch", "resourceclaims/binding.resource.k8s.io", False),
        ("arbitrary-node:patch", "resourceclaims/driver.resource.k8s.io", False),
        ("list", "secrets", False),
        ("create", "pods", False),
    ],
)
def test_the_shipped_account_may_do_what_the_driver_needs_and_no_more(
    cluster: Cluster, verb: str, resource: str, allowed: bool
) -> None:
    assert _may(cluster, verb, resource) is allowed


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


@pytest.fixture
def generous_rights(cluster: Cluster) -> Iterator[None]:
    """The account may write any part of any claim's status, as on Kubernetes before 1.36: only admission holds it."""
    rules = [
        {"apiGroups": [_DRA], "resources": ["resourceclaims/binding"], "verbs": ["patch"]},
        {"apiGroups": [_DRA], "resources": ["resourceclaims/driver"], "verbs": ["arbitrary-node:patch"]},
    ]
    subject = {"kind": "ServiceAccount", "name": "tesela-node-plugin", "namespace": "tesela"}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "generous"}
    objects = (
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "generous"}, "rules": rules},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "generous"}}
        | {"roleRef": role, "subjects": [subject]},
    )
    cluster.apply(*objects)

    def are_known() -> bool:
        return _may(cluster, "patch", f"resourceclaims/binding.{_DRA}")

    wait_until("the rights are known", are_known, timeout_s=20)
    yield
    cluster.kubectl("delete", "clusterrolebinding,clusterrole", "generous")
    wait_until("the rights are gone", lambda: not are_known(), timeout_s=20)


@pytest.fixture
def claims(cluster: Cluster, namespace: Namespace) -> Iterator[Callable[..., Json]]:
    """Makes claims that are allocated with these devices, on a node: names of drivers."""

    def make(node_name: str, *drivers: str) -> Json:
        made = cluster.kube.create(
            RESOURCE_CLAIMS, {"metadata": {"name": "c", "namespace": namespace.name}, "spec": SPEC}
        )
        results = [{"request": "core", "driver": one, "pool": node_name, "device": "gpu-0"} for one in drivers]
        fields = [{"key": "metadata.name", "operator": "In", "values": [node_name]}]
        selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
        status = {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}
        return cluster.kube.replace_status(RESOURCE_CLAIMS, {**made, "status": status})

    yield make
    left = cluster.kube.get(RESOURCE_CLAIMS, "c", namespace.name)
    cluster.kube.replace_status(RESOURCE_CLAIMS, {**left, "status": {}})


def _apply(kubeconfig: Path, claim: Json, *drivers: str, **status: Json) -> Json:
    pool = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    entries = [{"driver": driver, "pool": pool, "device": "gpu-0", "data": {"uuid": "x"}} for driver in drivers]
    metadata = {name: claim["metadata"][name] for name in ("name", "namespace")}
    kube = KubeClient(load_config(str(kubeconfig)))
    obj = {"metadata": metadata, "status": {"devices": entries, **status}}
    return kube.apply_status(RESOURCE_CLAIMS, obj, field_manager="gpu.nvidia.com")


def test_the_pod_bound_token_may_write_our_devices_of_a_claim_on_its_node(
    identity: Identity, claims: Callable[..., Json]
) -> None:
    kept = _apply(identity.kubeconfig, claims("node1", "gpu.nvidia.com"), "gpu.nvidia.com")

    assert kept["status"]["devices"][0]["data"] == {"uuid": "x"}


@pytest.mark.usefixtures("generous_rights")
def test_admission_refuses_the_status_of_a_claim_on_another_node(
    identity: Identity, claims: Callable[..., Json]
) -> None:
    claim = claims("node2", "gpu.nvidia.com")

    with pytest.raises(ApiError, match="may write only the status of claims that are allocated there"):
        _apply(identity.kubeconfig, claim, "gpu.nvidia.com")


@pytest.mark.usefixtures("generous_rights")
def test_admission_refuses_devices_of_another_driver(identity: Identity, claims: Callable[..., Json]) -> None:
    claim = claims("node1", "gpu.nvidia.com", "net.example.com")

    with pytest.raises(ApiError, match=r"may write only status\.devices of the driver"):
        _apply(identity.kubeconfig, claim, "gpu.nvidia.com", "net.example.com")


@pytest.mark.usefixtures("generous_rights")
def test_admission_refuses_to_reserve_a_claim(identity: Identity, claims: Callable[..., Json]) -> None:
    claim = claims("node1", "gpu.nvidia.com")

    with pytest.raises(ApiError, match="may neither allocate nor reserve"):
        _apply(identity.kubeconfig, claim, reservedFor=[{"resource": "pods", "name": "p", "uid": "u"}])


def test_the_server_refuses_the_status_of_a_claim_on_another_node(
    identity: Identity, claims: Callable[..., Json]
) -> None:
    claim = claims("node2", "gpu.nvidia.com")

    with pytest.raises(ApiError, match="arbitrary-node:patch"):
        _apply(identity.kubeconfig, claim, "gpu.nvidia.com")


def test_the_policies_of_admission_compile(cluster: Cluster) -> None:
    shown = cluster.kubectl("get", "validatingadmissionpolicies", "-o", "json")

    warned = [one["metadata"]["name"] for one in json.loads(shown)["items"]
              if one.get("status", {}).get("typeChecking", {}).get("expressionWarnings")]  # fmt: skip
    assert warned == []


def _may(cluster: Cluster, verb: str, resource: str) -> bool:
    account = "system:serviceaccount:tesela:tesela-node-plugin"
    review: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": {"verb": verb, **_group(resource)}},
    }
    answer = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(review)))
    return bool(answer["status"].get("allowed"))


def _group(resource: str) -> dict[str, str]:
    path, _, group = resource.partition(".")
    plural, _, subresource = path.partition("/")
    named = {"name": "gpu.nvidia.com"} if subresource == "driver" else {}
    return {"resource": plural, "subresource": subresource, "group": group, "namespace": "default", **named}


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
