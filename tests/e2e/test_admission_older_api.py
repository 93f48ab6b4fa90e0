"""The policy of configs on an API server that still serves the beta versions of resource.k8s.io."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.harness import build
from e2e.harness.cluster import Cluster
from e2e.harness.components import Settings
from e2e.harness.config_policy import FILE, hear_kubectl, wait_in_force
from e2e.harness.pods import render_opaque
from e2e.harness.processes import Process
from tesela.edge.kube.port import Json

CLASSES = Path(__file__).resolve().parents[2] / "deviceclasses"
BETAS = ("v1beta1", "v1beta2")
BAD = render_opaque("GpuConfig", sharing={"strategy": "Fair"})
REQUESTS: dict[str, Json] = {
    "v1beta1": {"name": "core", "deviceClassName": "gpu.nvidia.com"},
    "v1beta2": {"name": "core", "exactly": {"deviceClassName": "gpu.nvidia.com"}},
}


class BetaCluster(Cluster):
    """One whose API server serves the betas, which none does unless told."""

    def start(self, name: str, render: Callable[[Settings], list[str]]) -> Process:
        betas = ",".join(f"resource.k8s.io/{version}=true" for version in BETAS)
        told = [f"--runtime-config={betas}"] if name == "apiserver" else []
        return super().start(name, lambda settings: [*render(settings), *told])


@pytest.fixture(scope="module")
def betas(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster beside the session's, whose network this thread is in again afterwards."""
    other = BetaCluster(build.prepare())
    try:
        other.up()
        other.apply(FILE, CLASSES)
        wait_in_force(other)
        yield other
    finally:
        other.down()
        cluster.sandbox.join_network()


def render(version: str, kind: str) -> Json:
    devices = {"requests": [REQUESTS[version]], "config": [BAD]}
    specs: dict[str, Json] = {
        "ResourceClaim": {"devices": devices},
        "ResourceClaimTemplate": {"spec": {"devices": devices}},
        "DeviceClass": {"config": [BAD]},
    }
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": "bad"},
        "spec": specs[kind],
    }


@pytest.mark.parametrize("version", BETAS)
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ResourceClaim", "spec.devices.config[0]"),
        ("ResourceClaimTemplate", "spec.spec.devices.config[0]"),
        ("DeviceClass", "spec.config[0]"),
    ],
)
def test_an_object_of_a_beta_is_refused_as_one_of_v1(betas: Cluster, version: str, kind: str, path: str) -> None:
    said = hear_kubectl(betas, "default", render(version, kind))

    assert f"denied request: {path}.opaque.parameters.sharing.strategy: must be TimeSlicing" in said
