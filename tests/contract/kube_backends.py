"""The backends that the Kubernetes contract suite runs over, each behind the port alone.

`embedded`: in memory. `client`: the official client over the embedded cluster's HTTP. `real`: the official client on
the API server of the kubeconfig that TESELA_E2E_KUBECONFIG names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tesela.core.errors import ApiError, ApiNotFound
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.server import ApiServer
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import Json, Kube, Resource

REAL_KUBECONFIG = "TESELA_E2E_KUBECONFIG"
# left out where it is not set, not skipped: a hundred skips would hide one that matters
REAL = [pytest.param("real", marks=pytest.mark.cluster)] if REAL_KUBECONFIG in os.environ else []
BACKENDS = ("embedded", "client", *REAL)
FORGETFUL = ("embedded", "client")
"""Those that forget history when asked; a real server does in its own time."""


@dataclass
class Api:
    """A backend under test, which removes at the end what the test created."""

    kube: Kube
    forget_history: Callable[[], None] | None = None
    created: list[tuple[Resource, str, str | None]] = field(default_factory=list)

    def create(self, resource: Resource, obj: Json) -> Json:
        kept = self.kube.create(resource, obj)
        self.created.append((resource, kept["metadata"]["name"], kept["metadata"].get("namespace")))
        return kept

    def clean(self) -> None:
        for resource, name, namespace in reversed(self.created):
            try:
                left = self.kube.get(resource, name, namespace)
                if left["metadata"].pop("finalizers", None):
                    self.kube.replace(resource, left)
                self.kube.delete(resource, name, namespace, grace_period_s=0)
            except ApiNotFound:
                continue


@contextmanager
def open_api(backend: str, folder: Path) -> Iterator[Api]:
    """The backend named `backend`, closed at the end."""
    if backend == "real":
        client = KubeClient(load_config(os.environ[REAL_KUBECONFIG]))
        api = Api(client)
        try:
            yield api
        finally:
            api.clean()
            client.close()
        return
    cluster = EmbeddedCluster()
    if backend == "embedded":
        yield Api(cluster, cluster.forget_history)
        cluster.close()
        return
    server = ApiServer(cluster)
    client = KubeClient(load_config(str(server.write_kubeconfig(folder / "kubeconfig"))), page_size=3)
    try:
        yield Api(client, cluster.forget_history)
    finally:
        client.close()
        cluster.close()
        server.close()


def refusal(call: Callable[[], object]) -> ApiError:
    """The ApiError that `call` ends with."""
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value
