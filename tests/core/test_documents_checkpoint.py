"""What is read of NVIDIA's checkpoint: both twins, older names of fields, and damage that shows."""

from __future__ import annotations

import contextlib
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.checkpoint import TheirKind
from tesela.core.errors import StateError
from tesela.edge.documents.cdi import list_device_names
from tesela.edge.documents.checkpoint import LARGEST_BYTES, decode_checkpoint
from their_driver import TheirDriver, compute_checksum

UID = "5f1c4a52-3b7e-4a35-9d7c-2d5a4b1f0c11"
OTHER = "9d2ab7c3-41de-4a77-8f0e-1c2b3a4d5e6f"


def render() -> bytes:
    theirs = TheirDriver("node-1", "boot-1")
    theirs.give_partition(UID, "gpu-0-mig-1g10gb-19-3", "GPU-a", mig_uuid="MIG-a", gi_id=7)
    theirs.begin(OTHER, "gpu-1")
    return theirs.render()


def write_v1(device: dict) -> bytes:
    """As an early release wrote it, laid out by hand."""
    groups = [{"devices": [device], "configState": {}}]
    return json.dumps({"checksum": 1, "v1": {"preparedClaims": {UID: {"preparedDevices": groups}}}}, indent=1).encode()


def test_what_was_prepared_and_what_was_begun_are_told_apart():
    claims = decode_checkpoint(render()).claims

    assert [(one.uid, one.completed, one.name) for one in claims] == [(UID, True, ""), (OTHER, False, "half")]


def test_a_partition_has_its_ids_and_its_parent():
    (device,) = decode_checkpoint(render()).claims[0].devices

    assert (device.gpu_uuid, device.mig_uuid, device.gi_id, device.ci_id) == ("GPU-a", "MIG-a", 7, 0)


def test_names_of_fields_of_early_releases_are_read():
    info = {"uuid": "MIG-a", "parentUUID": "GPU-a", "giId": 1, "ciId": 0, "profile": "1g.10gb"}
    body = {"request_names": ["r0"], "pool_name": "node-1", "device_name": "gpu-0-mig-1g10gb-19-3"}

    (device,) = decode_checkpoint(write_v1({"mig": {"info": info, "device": body}})).claims[0].devices

    assert (device.kind, device.requests, device.mig_uuid) == (TheirKind.MIG, ("r0",), "MIG-a")


def test_a_fact_that_is_missing_is_named():
    body = {"Requests": ["r0"], "PoolName": "node-1", "DeviceName": "gpu-0"}

    (claim,) = decode_checkpoint(write_v1({"gpu": {"info": {}, "device": body}})).claims

    assert claim.problem == "uuid is missing"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Requests", 3),
        ("Requests", [{}]),
        ("ShareID", {"a": 1}),
        ("DeviceName", "gpu-0\x1b[2J"),
        ("PoolName", "\ud800"),
    ],
)
def test_an_entry_with_what_no_driver_writes_harms_its_claim_alone(field, value):
    body = {"Requests": ["r0"], "PoolName": "node-1", "DeviceName": "gpu-0", field: value}

    (claim,) = decode_checkpoint(write_v1({"gpu": {"info": {"uuid": "GPU-a"}, "device": body}})).claims

    assert (claim.devices, "not what it should be" in claim.problem) == ((), True)


@pytest.mark.parametrize("number", [True, -1, 1 << 40, 1.5])
def test_an_instance_id_is_a_number_that_a_gpu_can_have(number):
    theirs = TheirDriver("node-1", "boot-1")
    theirs.give_partition(UID, "gpu-0-mig-1g10gb-19-3", "GPU-a", mig_uuid="MIG-a", gi_id=number)

    (claim,) = decode_checkpoint(theirs.render()).claims

    assert "giId" in claim.problem


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, render().decode().encode("utf-16"), b" " * (LARGEST_BYTES + 1)], ids=["deep", "16", "long"]
)
def test_a_file_that_no_parser_likes_is_damage(data):
    with pytest.raises(StateError):
        decode_checkpoint(data)


def test_a_large_checkpoint_takes_a_small_multiple_of_its_size():
    theirs = TheirDriver("node-1", "boot-1")
    for number in range(700):
        uid = f"{number:08d}-3b7e-4a35-9d7c-2d5a4b1f0c11"
        theirs.give_partition(uid, "gpu-0-mig-1g10gb-19-3", "GPU-a", mig_uuid=f"MIG-{number}", gi_id=7)
    data = theirs.render()

    tracemalloc.start()
    try:
        decode_checkpoint(data)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most_bytes < 30 * len(data)


def test_an_empty_checkpoint_has_no_claim():
    assert decode_checkpoint(TheirDriver("node-1", "boot-1").render()).claims == ()


def test_the_checksum_is_that_of_the_kubelet_s_checkpoint_manager():
    # FNV-1a of `([]uint8)[123 125]`, computed by Go's hash/fnv over its %v of the bytes `{}`.
    assert compute_checksum(b"{}") == compute_by_definition(b"([]uint8)[123 125]")


def compute_by_definition(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


@given(place=st.integers(0, len(render()) - 1), bit=st.integers(0, 7))
def test_no_bit_that_flips_changes_what_is_read(place, bit):
    """Outside of what the checksum covers nothing counts."""
    data = bytearray(render())
    data[place] ^= 1 << bit
    read = None

    with contextlib.suppress(StateError):
        read = decode_checkpoint(bytes(data))

    assert read in (None, decode_checkpoint(render()))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "kind: other\ndevices: [{name: a}]", "kind: k8s.gpu.nvidia.com/claim\ndevices: 3", "\x00", "a: ["],
)
def test_a_cdi_file_that_serves_nobody_names_no_device(text):
    assert list_device_names(text.encode()) == frozenset()
