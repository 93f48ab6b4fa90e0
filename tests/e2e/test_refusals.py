"""What cannot be served: the pod waits or fails with a sentence that helps, and nothing is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness.cluster import Cluster
from e2e.harness.config_policy import without_config_policy
from e2e.harness.node import Node
from e2e.harness.pods import (
    Namespace,
    render_claim_spec,
    render_opaque,
    render_pod,
    render_request,
    render_template,
)
from tesela.edge.kube.port import Json

GPUS = "h100-80gb"
FAILED = "FailedPrepareDynamicResources"
WHOLE = render_request("core", device_class="gpu.nvidia.com")


@pytest.fixture(scope="module", autouse=True)
def _no_policy(cluster: Cluster) -> Iterator[None]:
    """What prepare refuses where the API server let it through: tests/e2e/test_admission.py has the other half."""
    with without_config_policy(cluster):
        yield


def time_slicing(interval: str) -> Json:
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def test_a_profile_that_no_gpu_has_waits(work: Namespace) -> None:
    work.apply(render_template("odd", render_claim_spec([render_request("core", profile="9g.99gb")])))
    work.apply(render_pod("patient", templates={"gpu": "odd"}))

    work.wait_unschedulable("patient", "cannot allocate all claims")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (render_opaque("GpuConfig", sharing=time_slicing("Sometimes")), ": sharing.timeSlicingConfig.interval: "),
        (render_opaque("GpuConfig", sharing=time_slicing("Long"), colour="blue"), ": colour: "),
        (render_opaque("GpuConfig", sharing={"strategy": "MPS"}), ": sharing.strategy: MPS is not supported yet"),
        (render_opaque("GpuConfiguration"), ": kind: "),
        (render_opaque("GpuConfig", api_version="resource.nvidia.com/v9"), ": apiVersion: "),
    ],
    ids=["wrong value", "unknown field", "MPS", "unknown kind", "unknown version"],
)
def test_a_bad_config_fails_its_pod_with_the_field_s_name(work: Namespace, config: Json, named: str) -> None:
    work.apply(render_template("bad", render_claim_spec([WHOLE], config=[config])))
    work.apply(render_pod("wrong", templates={"gpu": "bad"}))

    assert named in work.wait_event("wrong", FAILED, named)


def test_a_refused_claim_leaves_nothing(node: Node, work: Namespace) -> None:
    config = render_opaque("MigDeviceConfig", sharing={"strategy": "Sometimes"})
    spec = render_claim_spec([render_request("core", profile="1g.10gb")], config=[config])
    work.apply(render_template("bad", spec), render_pod("wrong", templates={"gpu": "bad"}))
    work.wait_event("wrong", FAILED)

    assert node.list_leftovers() == []
