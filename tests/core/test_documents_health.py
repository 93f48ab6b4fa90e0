"""Health survives every value it may hold, and refuses everything else with a sentence."""

from __future__ import annotations

import json

import pytest
from health_world import GPU, healths, tell
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.errors import OtherRelease, StateError
from tesela.core.health.model import (
    Clearance,
    Effect,
    Evidence,
    Finding,
    HealthState,
    NodeHealth,
    Reach,
)
from tesela.core.health.observations import XidSeen
from tesela.core.model import Placement
from tesela.edge.documents.health import decode_health, encode_health

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
numbers = st.integers(min_value=0, max_value=2**53)
placements = st.none() | st.builds(Placement, start=numbers, size=st.integers(0, 16))
findings = st.builds(
    Finding,
    signal=texts,
    gpu_uuid=texts,
    placement=placements,
    state=st.sampled_from(HealthState),
    key=texts,
    effect=st.sampled_from(Effect),
    evidence=st.sampled_from(Evidence),
    reason=texts,
    message=texts,
    since_s=numbers,
    last_s=numbers,
    count=numbers,
    boot_id=texts,
    epoch=texts,
    generation=numbers,
    reach=st.sampled_from(Reach),
)
clearances = st.builds(
    Clearance,
    signal=texts,
    gpu_uuid=texts,
    placement=placements,
    count=numbers,
    reason=texts,
    who=texts,
    at_s=numbers,
)
documents = st.builds(
    NodeHealth,
    findings=st.lists(findings, max_size=3).map(tuple),
    clearances=st.lists(clearances, max_size=2).map(tuple),
)
ONE = encode_health(tell(XidSeen(gpu_uuid=GPU, xid=48)))


@given(documents | healths)
def test_health_comes_back_as_it_was(health):
    assert decode_health(encode_health(health)) == health


@given(st.integers(0, len(ONE) - 2))
def test_a_truncated_file_is_refused(length):
    with pytest.raises(StateError, match="the health of this node's GPUs is unreadable"):
        decode_health(ONE[:length])


@given(st.binary(max_size=40))
def test_noise_is_refused(noise):
    with pytest.raises(StateError):
        decode_health(noise)


def test_a_later_release_is_named():
    document = json.loads(ONE) | {"version": 3}

    with pytest.raises(OtherRelease, match="version 3"):
        decode_health(json.dumps(document).encode())
