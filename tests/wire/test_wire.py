"""The pure half of the kubelet edge: deadlines, and messages to types and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tesela.core.model import PreparedDevice, Refusal
from tesela.edge.kubelet.wire import (
    MAX_ANSWER_S,
    parse_claims,
    parse_prepared,
    parse_unprepared,
    plan_deadline,
    render_prepared_v1,
    render_unprepared_v1beta1,
)
from tesela.pb.dra.v1 import api_pb2 as v1
from wire.kubelet_fakes import claim

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
devices = st.builds(
    PreparedDevice,
    request_names=st.lists(names, max_size=3).map(tuple),
    pool_name=names,
    device_name=names,
    cdi_device_ids=st.lists(names, max_size=3).map(tuple),
    share_id=st.none() | names,
)
sentences = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)
results = st.dictionaries(names, st.lists(devices, max_size=3).map(tuple) | st.builds(Refusal, message=sentences))


@given(st.floats(min_value=-10, allow_nan=False))
def test_an_answer_is_always_due_before_its_caller_gives_up(remaining_s):
    assert 0.0 <= plan_deadline(remaining_s) <= min(MAX_ANSWER_S, max(remaining_s, 0.0))


@given(results)
def test_prepared_results_round_trip(prepared):
    assert (
        parse_prepared(v1.NodePrepareResourcesResponse.FromString(render_prepared_v1(prepared).SerializeToString()))
        == prepared
    )


@given(st.dictionaries(names, st.none() | sentences))
def test_unprepared_results_round_trip(unprepared):
    assert parse_unprepared(render_unprepared_v1beta1(unprepared)) == unprepared


@given(st.lists(st.text(max_size=10)))
def test_every_claim_is_either_served_or_refused(uids):
    claims, malformed = parse_claims([claim(uid) for uid in uids])
    assert sorted([*(one.uid for one in claims), *malformed]) == sorted(set(uids))


@given(st.uuids().map(str))
def test_a_uid_of_an_api_server_is_served(uid):
    assert parse_claims([claim(uid)]) == ((claim(uid),), {})
