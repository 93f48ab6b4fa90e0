"""The CDI document: what the runtime's rules demand, and what a workload must find in it."""

from __future__ import annotations

import re
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.cdi import DeviceNode, render_cdi_ids, render_cdi_names, render_claim_cdi
from tesela.core.errors import StateError
from tesela.core.model import ClaimRef, Placement
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
    render_answer,
)

# The published rules of CDI 0.5.0 and 0.6.0 (JSON schema and the checks of its Go library), as far as our documents go.
EDITS = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "env": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*="}},
        "deviceNodes": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["path"],
                "additionalProperties": False,
                "properties": {
                    "path": {"type": "string", "pattern": "^/"},
                    "hostPath": {"type": "string", "pattern": "^/"},
                    "type": {"enum": ["b", "c", "u", "p"]},
                    "major": {"type": "integer", "minimum": 0},
                    "minor": {"type": "integer", "minimum": 0},
                    "fileMode": {"type": "integer", "minimum": 0, "maximum": 0o777},
                    "permissions": {"type": "string", "pattern": "^[rwm]+$"},
                    "uid": {"type": "integer", "minimum": 0},
                    "gid": {"type": "integer", "minimum": 0},
                },
            },
        },
        "mounts": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["hostPath", "containerPath"],
                "additionalProperties": False,
                "properties": {
                    "hostPath": {"type": "string", "pattern": "^/"},
                    "containerPath": {"type": "string", "pattern": "^/"},
                    "options": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
        "hooks": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["hookName", "path"],
                "additionalProperties": False,
                "properties": {
                    "hookName": {
                        "enum": [
                            "prestart",
                            "createRuntime",
                            "createContainer",
                            "startContainer",
                            "poststart",
                            "poststop",
                        ]
                    },
                    "path": {"type": "string", "pattern": "^/"},
                    "args": {"type": "array", "items": {"type": "string"}},
                    "env": {"type": "array", "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*="}},
                    "timeout": {"type": "integer"},
                },
            },
        },
    },
}
CDI_SCHEMA = {
    "type": "object",
    "required": ["cdiVersion", "kind", "devices"],
    "additionalProperties": False,
    "properties": {
        "cdiVersion": {"enum": ["0.5.0", "0.6.0"]},
        "annotations": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
        "kind": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]$"},
        "containerEdits": EDITS,
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
                    "containerEdits": EDITS,
                },
            },
        },
    },
}

# Annotations came with 0.6.0, and a document claims no higher version than it needs.
CDI_SCHEMA["if"] = {"required": ["annotations"]}
CDI_SCHEMA["then"] = {"properties": {"cdiVersion": {"const": "0.6.0"}}}
CDI_SCHEMA["else"] = {"properties": {"cdiVersion": {"const": "0.5.0"}}}
CDI_RULES = jsonschema.Draft202012Validator(CDI_SCHEMA)

UID = "3f0c8f9e-77c1-4c8e-a1c5-2a9d2b7c0c11"
CONTROL = DeviceNode(path="/dev/nvidiactl", major=195, minor=255, mode=0o666)
GPU = DeviceNode(path="/dev/nvidia0", major=195, minor=0, mode=0o666)
CAP = DeviceNode(path="/dev/nvidia-caps/nvidia-cap30", host_path="/drv/dev/cap30", major=237, minor=30, mode=0o444)


def whole(number=0, request="gpu", **changes):
    device = RecordedDevice(
        request=request,
        pool="node-1",
        device=f"gpu-{number}",
        gpu_uuid=f"GPU-{number}",
        admin_access=False,
        share_id=None,
        boot_id="boot",
        generation=1,
    )
    return replace(device, **changes)


def partition(number=0, start=0, request="gpu", uuid="MIG-1"):
    one = RecordedPartition(
        profile_id=19,
        profile="1g.5gb",
        placement=Placement(start=start, size=1),
        role=PartitionRole.CURRENT,
        state=PartitionState.PREPARED,
        ours=True,
        gi_id=7,
        ci_id=0,
        mig_uuid=uuid,
    )
    return whole(number, request, device=f"gpu-{number}-mig-1g5gb-19-{start}", partitions=(one,))


def record(*devices, pod_claim_name=None):
    return ClaimRecord(
        claim=ClaimRef(namespace="ai", name="train-x7k2p", uid=UID),
        state=ClaimState.PREPARED,
        devices=devices,
        pod_claim_name=pod_claim_name,
    )


def render(claim, **metadata_paths):
    return render_claim_cdi(
        claim, common_nodes=(CONTROL,), device_nodes=[(GPU, CAP)] * len(claim.devices), metadata_paths=metadata_paths
    )


def edits_of(document, index=0):
    return document["devices"][index]["containerEdits"]


def test_a_device_is_named_as_nvidias_driver_names_it():
    assert render_cdi_ids(record(whole())) == {("gpu", "gpu-0"): (f"k8s.gpu.nvidia.com/claim={UID}-gpu-0",)}


def test_the_document_keeps_nvidias_runtime_hook_out():
    assert render(record(whole()))["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_control_nodes_stand_on_the_document():
    nodes = render(record(whole()))["containerEdits"]["deviceNodes"]

    assert [node["path"] for node in nodes] == ["/dev/nvidiactl"]


def test_a_device_carries_its_nodes_with_numbers_and_host_path():
    assert edits_of(render(record(partition())))["deviceNodes"][1] == {
        "path": "/dev/nvidia-caps/nvidia-cap30",
        "hostPath": "/drv/dev/cap30",
        "type": "c",
        "major": 237,
        "minor": 30,
        "fileMode": 0o444,
        "permissions": "rw",
    }


def test_owner_and_group_of_a_node_are_kept():
    node = replace(GPU, uid=1, gid=44)
    document = render_claim_cdi(record(whole()), common_nodes=(), device_nodes=[(node,)], metadata_paths={})

    rendered = edits_of(document)["deviceNodes"][0]

    assert (rendered["uid"], rendered["gid"]) == (1, 44)


def test_a_partition_tells_its_own_uuid_and_profile():
    assert edits_of(render(record(partition(), pod_claim_name="train")))["env"] == [
        "TESELA_TRAIN_GPU_UUIDS=MIG-1",
        "TESELA_TRAIN_GPU_PROFILES=1g.5gb",
    ]


def test_a_claim_without_template_is_called_by_its_name():
    assert edits_of(render(record(whole())))["env"][0] == "TESELA_TRAIN_X7K2P_GPU_UUIDS=GPU-0"


def test_a_whole_gpu_has_the_empty_profile():
    assert edits_of(render(record(whole())))["env"][1] == "TESELA_TRAIN_X7K2P_GPU_PROFILES="


def test_every_device_of_a_request_tells_of_all_of_them():
    document = render(record(partition(start=0, uuid="MIG-1"), partition(start=1, uuid="MIG-2"), whole(3, "other")))

    assert [edits_of(document, i)["env"][0].partition("=")[2] for i in range(3)] == [
        "MIG-1,MIG-2",
        "MIG-1,MIG-2",
        "GPU-3",
    ]


def test_a_subrequest_is_called_by_its_parent():
    assert edits_of(render(record(whole(request="gpu/big"))))["env"][0].startswith("TESELA_TRAIN_X7K2P_GPU_UUIDS=")


def test_metadata_is_mounted_by_the_first_device_of_its_request_only():
    document = render(record(whole(0), whole(1)), gpu="/state/metadata.json")

    assert ["mounts" in edits_of(document, i) for i in range(2)] == [True, False]


def test_metadata_of_a_claim_lies_under_the_claims_name():
    mount = edits_of(render(record(whole()), gpu="/state/metadata.json"))["mounts"][0]

    assert mount == {
        "hostPath": "/state/metadata.json",
        "containerPath": "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/train-x7k2p/gpu/"
        "gpu.nvidia.com-metadata.json",
        "options": ["ro", "nosuid", "nodev", "bind"],
    }


def test_metadata_of_a_claim_from_a_template_lies_under_the_pods_name_for_it():
    mount = edits_of(render(record(whole(), pod_claim_name="train"), gpu="/state/metadata.json"))["mounts"][0]

    assert "/resourceclaimtemplates/train/gpu/" in mount["containerPath"]


def test_the_same_device_twice_has_two_names():
    assert render_cdi_names(record(whole(), whole(request="monitor", admin_access=True))) == (
        f"{UID}-gpu-0",
        f"{UID}-gpu-0.2",
    )


def test_the_answer_names_a_device_of_the_document():
    claim = record(partition(), whole(1, "other"))

    answered = {i for device in render_answer(claim, render_cdi_ids(claim)) for i in device.cdi_device_ids}

    assert answered == {f"k8s.gpu.nvidia.com/claim={device['name']}" for device in render(claim)["devices"]}


def test_a_partition_without_uuid_is_no_device_yet():
    with pytest.raises(StateError, match="gpu-0-mig-1g5gb-19-0 has no partition with a UUID"):
        render(record(partition(uuid=None)))


def test_a_device_without_nodes_is_an_error():
    with pytest.raises(StateError, match="gpu-0 has no device node"):
        render_claim_cdi(record(whole()), common_nodes=(), device_nodes=[()], metadata_paths={})


DRIVER_EDITS = {
    "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"],
    "mounts": [{"hostPath": "/lib/x", "containerPath": "/lib/x", "options": ["ro"]}],
    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook"]}],
}


def render_with_driver():
    return render_claim_cdi(
        record(whole()),
        common_nodes=(CONTROL,),
        device_nodes=[(GPU,)],
        metadata_paths={},
        annotations={"a.b/c": "d"},
        driver_edits=DRIVER_EDITS,
    )


def test_what_containers_get_of_the_driver_stands_on_the_document():
    common = render_with_driver()["containerEdits"]

    assert (common["mounts"], common["hooks"]) == (DRIVER_EDITS["mounts"], DRIVER_EDITS["hooks"])


def test_the_switch_that_keeps_nvidias_hook_out_stands_beside_the_drivers_variables():
    assert render_with_driver()["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void", *DRIVER_EDITS["env"]]


def test_a_document_with_the_drivers_files_keeps_the_rules():
    CDI_RULES.validate(render_with_driver())


labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
claims = st.builds(
    ClaimRecord,
    claim=st.builds(ClaimRef, namespace=labels, name=labels, uid=st.uuids().map(str)),
    state=st.just(ClaimState.PREPARED),
    pod_claim_name=st.none() | labels,
    devices=st.lists(
        st.one_of(
            st.builds(whole, st.integers(0, 3), labels),
            st.builds(partition, st.integers(0, 3), st.integers(0, 6), labels),
        ),
        min_size=1,
        max_size=6,
    ).map(tuple),
)


@given(claims, st.sampled_from([None, {"gpu.nvidia.com/record": "{}"}]))
def test_every_document_follows_the_rules_of_cdi(claim, annotations):
    document = render_claim_cdi(
        claim,
        common_nodes=(CONTROL,),
        device_nodes=[(GPU, CAP)] * len(claim.devices),
        metadata_paths={device.base_request: "/state/metadata.json" for device in claim.devices},
        annotations=annotations,
    )

    CDI_RULES.validate(document)


@given(claims)
def test_no_two_devices_of_a_document_share_a_name(claim):
    names = render_cdi_names(claim)

    assert len(set(names)) == len(names)


@given(claims)
def test_variables_have_names_that_a_shell_can_use(claim):
    names = [text.partition("=")[0] for device in render(claim)["devices"] for text in device["containerEdits"]["env"]]

    assert all(re.fullmatch(r"TESELA_[A-Z0-9_]+_(UUIDS|PROFILES)", name) for name in names)
