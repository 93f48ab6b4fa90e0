"""Our part of an API claim is read; what is no allocated claim is refused with the field."""

from __future__ import annotations

import copy

import pytest
from tesela.core.claim import AllocatedResult, ConfigSource
from tesela.core.errors import ClaimRefused, DocumentError
from tesela.edge.documents.claim import decode_claim

OURS = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"namespace": "ai", "name": "train-x7k2p", "uid": "uid-1", "somethingNew": 1},
    "status": {"allocation": {"devices": {"results": [OURS]}, "nodeSelector": {}}},
}


def claim_with(*, results=(OURS,), config=(), annotations=None):
    claim = copy.deepcopy(CLAIM)
    claim["status"]["allocation"]["devices"] = {"results": list(results), "config": list(config)}
    if annotations:
        claim["metadata"]["annotations"] = annotations
    return claim


def config_of(**changes):
    return {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "X"}}} | changes


def test_a_result_of_ours_is_read():
    assert decode_claim(CLAIM).results == (AllocatedResult(request="gpu", pool="node-1", device="gpu-0"),)


def test_the_claim_is_named():
    assert str(decode_claim(CLAIM).ref) == "ai/train-x7k2p (uid-1)"


def test_results_of_other_drivers_are_skipped():
    claim = claim_with(results=[OURS | {"driver": "nic.example.com"}, OURS])

    assert [r.device for r in decode_claim(claim).results] == ["gpu-0"]


def test_admin_access_and_share_are_read():
    claim = claim_with(results=[OURS | {"adminAccess": True, "shareID": "s-1"}])

    result = decode_claim(claim).results[0]

    assert (result.admin_access, result.share_id) == (True, "s-1")


def test_a_subrequest_is_known_by_its_parent_to_the_pod():
    assert decode_claim(claim_with(results=[OURS | {"request": "gpu/big"}])).results[0].base_request == "gpu"


def test_a_claim_from_a_template_carries_the_pods_name_for_it():
    claim = claim_with(annotations={"resource.kubernetes.io/pod-claim-name": "train"})

    assert decode_claim(claim).pod_claim_name == "train"


def test_a_claim_without_template_has_no_pod_name():
    assert decode_claim(CLAIM).pod_claim_name is None


def test_a_config_of_ours_is_read_with_its_place():
    others = config_of(opaque={"driver": "nic.example.com", "parameters": {}})

    configs = decode_claim(claim_with(config=[others, config_of(requests=["gpu"])])).configs

    assert [(c.index, c.source, c.requests) for c in configs] == [(1, ConfigSource.CLAIM, ("gpu",))]


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_without_allocation_is_refused_by_name(status):
    with pytest.raises(ClaimRefused, match=r"claim ai/train-x7k2p \(uid-1\) has no allocation"):
        decode_claim(CLAIM | {"status": status})


@pytest.mark.parametrize(
    ("claim", "path"),
    [
        ({}, "metadata"),
        (CLAIM | {"metadata": {"namespace": "ai", "name": "x"}}, "metadata.uid"),
        (CLAIM | {"status": []}, "status"),
        (claim_with(results=["gpu-0"]), "status.allocation.devices.results[0]"),
        (claim_with(results=[OURS | {"device": 7}]), "status.allocation.devices.results[0].device"),
        (claim_with(results=[OURS | {"adminAccess": "yes"}]), "status.allocation.devices.results[0].adminAccess"),
        (claim_with(config=[{"source": "FromClass"}]), "status.allocation.devices.config[0].opaque"),
        (claim_with(config=[config_of(source="FromMars")]), "status.allocation.devices.config[0].source"),
        (claim_with(config=[config_of(requests=[1])]), "status.allocation.devices.config[0].requests[0]"),
        (
            claim_with(config=[config_of(opaque={"driver": "gpu.nvidia.com"})]),
            "status.allocation.devices.config[0].opaque.parameters",
        ),
    ],
)
def test_a_malformed_claim_is_refused_with_the_field(claim, path):
    with pytest.raises(DocumentError) as caught:
        decode_claim(claim)

    assert caught.value.path == path
