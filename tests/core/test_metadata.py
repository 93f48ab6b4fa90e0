"""Metadata files of KEP-5304."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tesela.core.metadata import find_requests, render_container_path, render_metadata
from tesela.core.model import ClaimRef, Placement
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)

WHOLE = RecordedDevice(
    request="gpu",
    pool="node-1",
    device="gpu-0",
    gpu_uuid="GPU-0",
    admin_access=False,
    share_id=None,
    boot_id="boot",
    generation=1,
)
PARTITION = replace(
    WHOLE,
    request="gpu/small",
    device="gpu-0-mig-1g5gb-19-0",
    partitions=(
        RecordedPartition(
            profile_id=19,
            profile="1g.5gb",
            placement=Placement(start=0, size=1),
            role=PartitionRole.CURRENT,
            state=PartitionState.PREPARED,
            ours=True,
            mig_uuid="MIG-1",
        ),
    ),
)


def record(*devices, pod_claim_name=None):
    claim = ClaimRef(namespace="ai", name="train-x7k2p", uid="uid-1")
    return ClaimRecord(claim=claim, state=ClaimState.PREPARED, devices=devices, pod_claim_name=pod_claim_name)


def documents(data):
    decoder, text, found = json.JSONDecoder(), data.decode(), []
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


def first_device(data):
    return documents(data)[0]["requests"][0]["devices"][0]


def test_the_newest_version_comes_first():
    versions = [d["apiVersion"] for d in documents(render_metadata(record(WHOLE), "gpu", {}))]

    assert versions == ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]


def test_the_claim_is_identified():
    assert documents(render_metadata(record(WHOLE), "gpu", {}))[0]["metadata"] == {
        "name": "train-x7k2p",
        "namespace": "ai",
        "uid": "uid-1",
        "generation": 1,
    }


def test_a_partition_has_its_live_uuid():
    attributes = first_device(render_metadata(record(PARTITION), "gpu", {}))["attributes"]

    assert (attributes["uuid"], attributes["parentUUID"]) == ({"string": "MIG-1"}, {"string": "GPU-0"})


def test_what_lives_goes_over_what_is_published():
    published = {PARTITION.device: {"profile": {"string": "stale"}, "architecture": {"string": "Ampere"}}}

    attributes = first_device(render_metadata(record(PARTITION), "gpu", published))["attributes"]

    assert (attributes["profile"], attributes["architecture"]) == ({"string": "1g.5gb"}, {"string": "Ampere"})


def test_no_device_has_more_attributes_than_the_format_allows():
    published = {WHOLE.device: {f"a{i}": {"int": i} for i in range(40)}}

    assert len(first_device(render_metadata(record(WHOLE), "gpu", published))["attributes"]) == 32


def test_a_request_is_called_by_the_allocations_name():
    assert documents(render_metadata(record(PARTITION), "gpu", {}))[0]["requests"][0]["name"] == "gpu/small"


def test_devices_of_other_requests_are_left_out():
    data = render_metadata(record(WHOLE, replace(WHOLE, request="other", device="gpu-1")), "other", {})

    assert [d["name"] for d in documents(data)[0]["requests"][0]["devices"]] == ["gpu-1"]


def test_each_request_of_the_pod_is_named_once():
    assert find_requests(record(PARTITION, PARTITION, replace(WHOLE, request="other"))) == ("gpu", "other")


@pytest.mark.parametrize(
    ("pod_claim_name", "folder"), [(None, "resourceclaims/train-x7k2p"), ("train", "resourceclaimtemplates/train")]
)
def test_a_container_finds_it_where_the_kep_says(pod_claim_name, folder):
    assert render_container_path(record(WHOLE, pod_claim_name=pod_claim_name), "gpu") == (
        f"/var/run/kubernetes.io/dra-device-attributes/{folder}/gpu/gpu.nvidia.com-metadata.json"
    )


def test_the_pods_name_for_the_claim_is_told():
    assert documents(render_metadata(record(WHOLE, pod_claim_name="train"), "gpu", {}))[0]["podClaimName"] == "train"
