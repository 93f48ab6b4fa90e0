"""State files survive every value they may hold, and refuse everything else with a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.errors import OtherRelease, StateError
from tesela.core.model import ClaimRef, Gpu, Placement, Profile
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)
from tesela.core.roster import EMPTY_ROSTER, KnownGpu, Roster
from tesela.edge.documents.record import decode_record, encode_record
from tesela.edge.documents.roster import decode_roster, encode_roster

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
numbers = st.integers(min_value=0, max_value=2**53)
placements = st.builds(Placement, start=numbers, size=st.integers(0, 16))
optional_ids = st.none() | numbers
partitions = st.builds(
    RecordedPartition,
    profile_id=numbers,
    profile=texts,
    placement=placements,
    role=st.sampled_from(PartitionRole),
    state=st.sampled_from(PartitionState),
    ours=st.booleans(),
    gi_id=optional_ids,
    ci_id=optional_ids,
    mig_uuid=st.none() | texts,
)
devices = st.builds(
    RecordedDevice,
    request=texts,
    pool=texts,
    device=texts,
    gpu_uuid=texts,
    admin_access=st.booleans(),
    share_id=st.none() | texts,
    boot_id=texts,
    generation=numbers,
    partitions=st.lists(partitions, max_size=3).map(tuple),
    time_slice=st.none() | texts,
)
records = st.builds(
    ClaimRecord,
    claim=st.builds(ClaimRef, namespace=texts, name=texts, uid=texts),
    state=st.sampled_from(ClaimState),
    devices=st.lists(devices, max_size=3).map(tuple),
    pod_claim_name=st.none() | texts,
    adopted=st.booleans(),
)
profiles = st.builds(
    Profile,
    profile_id=numbers,
    profile_enum=numbers,
    name=texts,
    compute_slices=numbers,
    max_instances=numbers,
    memory_bytes=numbers,
    multiprocessors=numbers,
    copy_engines=numbers,
    decoders=numbers,
    encoders=numbers,
    jpeg_engines=numbers,
    ofa_engines=numbers,
    placements=st.lists(placements, max_size=2).map(tuple),
)
gpus = st.builds(
    Gpu,
    uuid=texts,
    index=numbers,
    minor=numbers,
    pci_bus_id=texts,
    product_name=texts,
    brand=texts,
    architecture=texts,
    cuda_compute_capability=texts,
    memory_bytes=optional_ids,
    mig_enabled=st.none() | st.booleans(),
    resetless_mig=st.booleans(),
    profiles=st.lists(profiles, max_size=2).map(tuple),
    addressing_mode=st.none() | texts,
    numa_node=optional_ids,
    pcie_root=st.none() | texts,
    fabric_clique=st.none() | texts,
)
rosters = st.builds(
    Roster,
    boot_id=texts,
    module_token=texts,
    driver_version=texts,
    cuda_driver_version=numbers,
    gpus=st.lists(
        st.builds(KnownGpu, number=numbers, gpu=gpus, present=st.booleans(), generation=numbers), max_size=2
    ).map(tuple),
)

RECORD = ClaimRecord(
    claim=ClaimRef(namespace="ai", name="train", uid="uid-1"),
    state=ClaimState.PREPARED,
    devices=(
        RecordedDevice(
            request="gpu",
            pool="node-1",
            device="gpu-0",
            gpu_uuid="GPU-1",
            admin_access=False,
            share_id=None,
            boot_id="boot",
            generation=1,
        ),
    ),
)


def altered(**changes: object) -> bytes:
    body = json.loads(encode_record(RECORD))
    body["record"].update(changes)
    return json.dumps(body).encode()


@given(records)
def test_a_record_reads_back_as_written(record):
    assert decode_record(encode_record(record)) == record


@given(rosters)
def test_a_roster_reads_back_as_written(roster):
    assert decode_roster(encode_roster(roster)) == roster


def test_the_empty_roster_reads_back_as_written():
    assert decode_roster(encode_roster(EMPTY_ROSTER)) == EMPTY_ROSTER


def test_a_record_file_is_an_envelope_of_camel_case():
    body = json.loads(encode_record(RECORD))

    assert (body["version"], body["record"]["devices"][0]["gpuUuid"]) == (2, "GPU-1")


def test_another_version_names_both_versions_and_what_to_do():
    data = json.dumps({**json.loads(encode_record(RECORD)), "version": 3}).encode()

    with pytest.raises(OtherRelease, match="version 3 and this release reads version 1 and 2: run the release"):
        decode_record(data)


def test_a_record_of_version_1_reads_with_what_came_later_left_at_its_default():
    body = json.loads(encode_record(RECORD))
    later = {"grants", "adopted"}
    first = {name: value for name, value in body["record"].items() if name not in later}
    for device in first["devices"]:
        device.pop("interrupted")

    assert decode_record(json.dumps({"version": 1, "record": first}).encode()) == RECORD


def test_another_version_is_named_even_where_its_fields_are_new():
    with pytest.raises(StateError, match="written in version 7"):
        decode_record(b'{"version": 7, "claims": []}')


def test_a_record_with_any_bit_flipped_is_never_read_as_another():
    """A flipped bit of a UUID would read well, and what it named would be nobody's."""
    whole = encode_record(RECORD)
    flipped = [
        whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
        for place in range(len(whole))
        for bit in range(8)
    ]

    assert [data for data in flipped if reads_as(data) not in (None, RECORD)] == []


def reads_as(data):
    try:
        return decode_record(data)
    except StateError:
        return None


def test_a_record_that_was_written_without_a_checksum_is_read():
    body = json.loads(encode_record(RECORD))
    del body["checksum"]

    assert decode_record(json.dumps(body, separators=(",", ":")).encode()) == RECORD


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "EOF"),
        (b"\x00\x00\x00", "expected value"),
        (b"\xff{}", "expected value"),
        (encode_record(RECORD)[:-20], "EOF"),
        (b"[]", "should be an object"),
        (b"{}", "version: Field required"),
        (b'{"version": 1}', "record: Field required"),
        (b'{"version": true, "record": {}}', "version: Input should be a valid integer"),
        (altered(colour="blue"), "record.colour"),
        (altered(state="paused"), "record.state"),
        (altered(devices={}), "record.devices"),
        (altered(claim={"namespace": "ai", "name": "train"}), "record.claim.uid: Field required"),
        (altered(claim={"namespace": "ai", "name": "train", "uid": 7}), "record.claim.uid"),
    ],
)
def test_a_damaged_record_is_refused_with_the_field(data, problem):
    with pytest.raises(StateError, match=problem):
        decode_record(data)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_a_state_error(data):
    with pytest.raises(StateError):
        decode_record(data)
