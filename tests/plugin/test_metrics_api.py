"""Requests to the API server are counted in RBAC's words, answered or not."""

from __future__ import annotations

import pytest
from tesela.core.errors import ApiNotFound, ApiUnavailable
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.server import ApiServer
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.paths import name_request
from tesela.edge.kube.port import NODES
from tesela.edge.telemetry.metrics import Metrics
from tesela.edge.telemetry.recorder import Recorder


@pytest.mark.parametrize(
    ("method", "path", "query", "named"),
    [
        ("GET", "/api/v1/nodes/n", (), ("get", "nodes")),
        ("GET", "/api/v1/nodes", (), ("list", "nodes")),
        ("GET", "/api/v1/namespaces/ns", (), ("get", "namespaces")),
        ("GET", "/api/v1/namespaces", (), ("list", "namespaces")),
        ("GET", "/api/v1/namespaces/ns/pods/p", (), ("get", "pods")),
        ("GET", "/apis/resource.k8s.io/v1/resourceslices", ("watch", "resourceVersion"), ("watch", "resourceslices")),
        ("POST", "/apis/resource.k8s.io/v1/resourceslices", (), ("create", "resourceslices")),
        ("DELETE", "/apis/resource.k8s.io/v1/resourceslices/s", (), ("delete", "resourceslices")),
        (
            "PATCH",
            "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c/status",
            ("force",),
            ("patch", "resourceclaims/status"),
        ),
        ("PUT", "/apis/events.k8s.io/v1/namespaces/default/events/e", (), ("update", "events")),
        ("GET", "/version", (), ("get", "version")),
    ],
)
def test_a_request_is_named_in_rbacs_words(method, path, query, named):
    assert name_request(method, path, query) == named


@pytest.fixture
def api(tmp_path):
    """A client of a running API, and the counts of its requests."""
    cluster = EmbeddedCluster()
    server = ApiServer(cluster)
    server.write_kubeconfig(tmp_path / "kubeconfig")
    metrics = Metrics()
    client = KubeClient(load_config(str(tmp_path / "kubeconfig")), timeout_s=10, telemetry=Recorder(metrics))
    yield client, server, metrics
    client.close()
    server.close()
    cluster.close()


def count(metrics, verb, resource, code):
    labels = {"verb": verb, "resource": resource, "code": code}
    return metrics.registry.get_sample_value("tesela_api_requests_total", labels)


def test_an_answer_is_counted_by_its_code(api):
    client, _, metrics = api
    with pytest.raises(ApiNotFound):
        client.get(NODES, "no")

    assert count(metrics, "get", "nodes", "404") == 1


def test_what_was_made_is_counted_by_its_code(api):
    client, _, metrics = api
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})

    assert count(metrics, "create", "nodes", "201") == 1


def test_no_answer_is_code_0(tmp_path):
    cluster = EmbeddedCluster()
    server = ApiServer(cluster)
    server.write_kubeconfig(tmp_path / "kubeconfig")
    server.close()
    cluster.close()
    metrics = Metrics()
    client = KubeClient(load_config(str(tmp_path / "kubeconfig")), timeout_s=2, telemetry=Recorder(metrics))
    with pytest.raises(ApiUnavailable):
        client.get(NODES, "n")
    client.close()

    assert count(metrics, "get", "nodes", "0") == 1
