"""Topology constraints: two GPUs of which the machine tells nothing, then two under one PCIe root and NUMA node."""

from __future__ import annotations

import pytest
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, render_claim_spec, render_pod, render_request, render_template

GPUS = "h100-80gb:numa=unknown:pcie-root=unknown*2,h100-80gb:numa=1:pcie-root=pci0000-64*2"
ATTRIBUTES = ["resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"]


@pytest.fixture
def pairs(work: Namespace, request: pytest.FixtureRequest) -> Namespace:
    spec = render_claim_spec(
        [render_request("pair", device_class="gpu.nvidia.com", count=2)], same=[request.param]
    )  # fmt: skip
    work.apply(render_template("pair", spec), render_pod("first", templates={"gpu": "pair"}))
    work.wait_running("first")
    return work


@pytest.mark.parametrize("pairs", ATTRIBUTES, indirect=True)
def test_two_gpus_that_must_be_near_are(pairs: Namespace, node: Node) -> None:
    uuids = pairs.environment("first")["TESELA_GPU_PAIR_UUIDS"].split(",")

    assert uuids == node.simulator.list_gpus()[2:]


@pytest.mark.parametrize("pairs", ATTRIBUTES, indirect=True)
def test_unknown_topology_never_matches(pairs: Namespace) -> None:
    pairs.apply(render_pod("second", templates={"gpu": "pair"}))

    pairs.wait_unschedulable("second", "cannot allocate all claims")
