"""Whose claims need the driver once more, by what the API shows."""

from __future__ import annotations

import pytest
from tesela.core.removal import Served, Stage, list_held

OURS = {"placementStart": {"int": 0}, "uuid": {"string": "GPU-1"}}
THEIRS = {"uuid": {"string": "GPU-1"}}


def published(node, *attributes, driver="gpu.nvidia.com"):
    devices = [{"name": f"gpu-{number}", "attributes": one} for number, one in enumerate(attributes)]
    return {"spec": {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": devices}}


def claim(*devices, node="node-1", driver="gpu.nvidia.com", **more):
    results = [{"request": "r", "driver": driver, "pool": node, "device": device} for device in devices]
    metadata = {"namespace": "team", "name": "a", "uid": "uid-a", **more.pop("metadata", {})}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}, **more}}


def prepared(node="node-1"):
    return [{"driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"}]


NODES = [{"metadata": {"name": "node-1"}}]
SLICES = [published("node-1", OURS)]


def test_a_claim_that_the_driver_tells_of_is_prepared():
    (held,) = list_held([claim("gpu-0", devices=prepared())], SLICES, NODES)

    assert (held.node, held.claim, held.stage, held.keeps_driver) == ("node-1", "team/a", Stage.PREPARED, True)


def test_a_claim_that_it_does_not_tell_of_is_allocated_and_needs_it_too():
    """It may be prepared at any moment, and a driver whose status writes fail prepares all the same."""
    (held,) = list_held([claim("gpu-0")], SLICES, NODES)

    assert (held.stage, held.keeps_driver) == (Stage.ALLOCATED, True)


def test_a_claim_that_is_deleted_is_still_to_be_given_back():
    ending = claim("gpu-0", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, devices=prepared())
    (held,) = list_held([ending], SLICES, NODES)

    assert (held.stage, held.keeps_driver) == (Stage.ENDING, True)


def test_the_pods_that_may_use_it_are_named():
    reserved = [{"resource": "pods", "name": name, "uid": name} for name in ("b", "a")]
    (held,) = list_held([claim("gpu-0", reservedFor=reserved)], SLICES, NODES)

    assert held.pods == ("team/a", "team/b")


def test_a_claim_on_two_nodes_is_listed_with_each():
    both = claim("gpu-0")
    both["status"]["allocation"]["devices"]["results"] += claim("gpu-3", node="node-0")["status"]["allocation"][
        "devices"
    ]["results"]

    assert [(one.node, one.devices) for one in list_held([both], [], [])] == [
        ("node-0", ("gpu-3",)),
        ("node-1", ("gpu-0",)),
    ]


@pytest.mark.parametrize(
    "one", [claim("gpu-0", driver="nic.example.com"), {"metadata": claim()["metadata"]}, claim()], ids=str
)
def test_a_claim_without_devices_of_ours_is_not_listed(one):
    assert list_held([one], SLICES, NODES) == ()


@pytest.mark.parametrize(
    ("slices", "nodes", "served", "keeps"),
    [
        (SLICES, NODES, Served.TESELA, True),
        ([published("node-1")], NODES, Served.TESELA, True),
        ([published("node-1", THEIRS)], NODES, Served.OTHER, False),
        ([published("node-1", OURS, driver="nic.example.com")], NODES, Served.SILENT, True),
        ([], NODES, Served.SILENT, True),
        ([], [], Served.GONE, False),
    ],
)
def test_who_serves_its_node_says_whether_a_claim_needs_this_driver(slices, nodes, served, keeps):
    (held,) = list_held([claim("gpu-0")], slices, nodes)

    assert (held.served, held.keeps_driver) == (served, keeps)
