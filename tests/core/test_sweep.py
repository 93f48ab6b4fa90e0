"""What a sweep makes of what it saw: mismatches are named, and a repair concerns a claim of ours or there is none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_models import a100, h100, live, roster
from hypothesis import given
from hypothesis import strategies as st
from slice_world import holding
from tesela.core.model import ClaimRef
from tesela.core.record import ClaimState, Grant
from tesela.core.shape import DEFAULT_POLICY, Policy, PolicyRule, Shape
from tesela.core.sweep import (
    GONE_S,
    ApplyTimeSlice,
    ClaimSight,
    Found,
    GiveBack,
    GpuSight,
    Mismatch,
    MismatchKind,
    Outcome,
    RebuildRecord,
    RecoverClaim,
    RemoveFiles,
    Sight,
    SweepReport,
    plan_sweep,
)

GPU = a100()
UID = "8f1e4c1a-0000-4d7e-9a57-7e5e1a000001"
OTHER_UID = "8f1e4c1a-0000-4d7e-9a57-7e5e1a000002"
DEVICE = "gpu-0-mig-3g20gb-9-0"
THREE_AT_0 = live(GPU, "3g.20gb", 0, gi_id=1)
MIG_ON = GpuSight(mig_enabled=True, mig_pending=True)


def record(device=DEVICE, gpu=GPU, *, uid=UID, made=THREE_AT_0, **fields):
    """A prepared claim on one device; a partition has the ids of `made`."""
    held = holding(gpu, device)
    of_gpu = held.devices[0]
    partitions = tuple(
        replace(one, gi_id=made.gi_id, ci_id=made.ci_id, mig_uuid=made.mig_uuid) for one in of_gpu.partitions
    )
    of_gpu = replace(of_gpu, partitions=partitions, **fields)
    return replace(held, claim=ClaimRef(namespace="default", name="a", uid=uid), devices=(of_gpu,))


def sight(*records, gpus=None, **fields):
    """A node with one A100 in MIG mode on which everything is as these records say, but for `fields`."""
    seen = {
        "boot_id": "boot-1",
        "roster": roster(GPU),
        "policy": DEFAULT_POLICY,
        "records": records,
        "steady": frozenset(one.claim.uid for one in records),
        "files": frozenset(one.claim.uid for one in records),
        "complete": frozenset(one.claim.uid for one in records),
        "gpus": {GPU.uuid: replace(MIG_ON, live=(THREE_AT_0,))} if gpus is None else gpus,
    }
    return Sight(**seen | fields)


def planned(seen):
    return [(one.mismatch.kind, one.repair) for one in plan_sweep(seen)]


def on(**facts):
    return {GPU.uuid: replace(MIG_ON, **facts)}


def test_a_node_where_everything_fits_has_no_mismatch():
    assert planned(sight(record())) == []


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({}, MismatchKind.FOREIGN_PARTITION),
        ({"ci_id": None, "mig_uuid": None}, MismatchKind.BARE_INSTANCE),
        ({"mig_uuid": None}, MismatchKind.SPLIT_INSTANCE),
    ],
)
def test_what_no_record_speaks_of_is_reported(facts, kind):
    assert planned(sight(gpus=on(live=(replace(THREE_AT_0, **facts),)))) == [(kind, None)]


def test_a_foreign_partition_is_named_with_the_way_to_end_it():
    (one,) = plan_sweep(sight(gpus=on(live=(THREE_AT_0,))))

    assert (THREE_AT_0.mig_uuid in one.mismatch.message, "mig -dgi -gi 1" in one.mismatch.message) == (True, True)


def test_static_partitions_are_the_administrators_offer_and_no_mismatch():
    static = Policy(rules=(PolicyRule(mode=Shape.STATIC),))

    assert planned(sight(gpus=on(live=(THREE_AT_0,)), policy=static)) == []


def test_an_instance_that_static_cannot_offer_is_a_mismatch():
    static = Policy(rules=(PolicyRule(mode=Shape.STATIC),))
    bare = replace(THREE_AT_0, ci_id=None, mig_uuid=None)

    assert planned(sight(gpus=on(live=(bare,)), policy=static)) == [(MismatchKind.BARE_INSTANCE, None)]


def test_a_partition_of_a_claim_under_way_is_not_foreign():
    assert planned(sight(record(), steady=frozenset())) == []


def test_of_a_gpu_that_does_not_answer_nothing_is_concluded():
    assert planned(sight(record(), gpus={})) == []


def test_a_partition_that_went_is_recovered():
    assert planned(sight(record(), gpus=on())) == [(MismatchKind.LOST_PARTITION, RecoverClaim(claim_uid=UID))]


def test_another_partition_in_its_place_is_left_alone():
    other = replace(THREE_AT_0, mig_uuid="MIG-of-somebody", gi_id=5)

    found = planned(sight(record(), gpus=on(live=(other,))))

    assert found == [
        (MismatchKind.LOST_PARTITION, RecoverClaim(claim_uid=UID)),
        (MismatchKind.DISPLACED_PARTITION, None),
    ]


@pytest.mark.parametrize("state", [ClaimState.PREPARING, ClaimState.UNPREPARING])
def test_a_claim_left_half_done_is_recovered(state):
    half_done = replace(record(), state=state)

    assert planned(sight(half_done)) == [(MismatchKind.HALF_DONE_CLAIM, RecoverClaim(claim_uid=UID))]


def test_a_claim_whose_containers_may_open_a_lost_instance_is_left_to_its_kubelet():
    grants = (Grant(gpu_uuid=GPU.uuid, gi_id=1, boot_id="boot-1", request="gpu"),)
    lost = replace(record(), state=ClaimState.PREPARING, grants=grants)

    assert planned(sight(lost, gpus=on())) == [(MismatchKind.LOST_PARTITION, None)]


def test_what_is_left_of_a_claim_for_its_grants_is_no_mismatch():
    grants = (Grant(gpu_uuid=GPU.uuid, gi_id=1, boot_id="boot-1", request="gpu"),)
    remnant = replace(record(), state=ClaimState.PREPARING, grants=grants, devices=())

    assert planned(sight(remnant, gpus=on())) == []


def test_a_whole_gpu_recorded_before_a_boot_is_recovered():
    gpu = h100()
    seen = sight(record("gpu-0", gpu), roster=roster(gpu), boot_id="boot-2", gpus={})

    assert planned(seen) == [(MismatchKind.STALE_RECORD, RecoverClaim(claim_uid=UID))]


def test_missing_files_are_written_again():
    seen = sight(record(), complete=frozenset())

    assert planned(seen) == [(MismatchKind.MISSING_FILES, RecoverClaim(claim_uid=UID))]


def test_files_without_record_are_removed():
    seen = sight(gpus={}, files=frozenset({UID}))

    assert planned(seen) == [(MismatchKind.FILES_WITHOUT_RECORD, RemoveFiles(claim_uid=UID))]


def test_a_file_that_no_claim_can_have_is_left_alone():
    assert planned(sight(gpus={}, files=frozenset({"notes"}))) == [(MismatchKind.STRANGE_FILE, None)]


def test_files_of_a_damaged_record_are_not_orphans():
    seen = sight(gpus={}, files=frozenset({UID}), unreadable=(UID,))

    assert planned(seen) == [(MismatchKind.UNREADABLE_RECORD, RebuildRecord(claim_uid=UID))]


def gone(for_s, holders=()):
    return {UID: ClaimSight(gone_for_s=for_s, holders=holders)}


def test_a_claim_that_the_api_does_not_know_is_given_back_after_ten_minutes():
    seen = sight(record(), claims=gone(GONE_S))

    assert planned(seen) == [(MismatchKind.RECORD_WITHOUT_CLAIM, GiveBack(claim_uid=UID))]


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        (gone(0), "10 minutes"),
        (gone(GONE_S - 1), "10 minutes"),
        (gone(GONE_S, ("trainer (pid 4711)",)), "trainer (pid 4711)"),
        (gone(GONE_S, None), "cannot be told"),
    ],
)
def test_a_claim_that_is_gone_too_shortly_or_in_use_is_reported(claims, says):
    (one,) = plan_sweep(sight(record(), claims=claims))

    assert (one.mismatch.kind, one.repair, says in one.mismatch.message) == (
        MismatchKind.RECORD_WITHOUT_CLAIM,
        None,
        True,
    )


@pytest.mark.parametrize("claims", [{}, {UID: ClaimSight()}])
def test_of_a_claim_that_the_api_knows_or_does_not_tell_of_nothing_is_concluded(claims):
    assert planned(sight(record(), claims=claims)) == []


def test_a_whole_gpu_in_mig_mode_is_reported():
    gpu = h100()
    seen = sight(record("gpu-0", gpu), roster=roster(gpu), gpus={gpu.uuid: MIG_ON})

    assert planned(seen) == [(MismatchKind.MIG_MODE, None)]


def test_partitions_on_a_gpu_out_of_mig_mode_are_lost():
    off = {GPU.uuid: GpuSight(mig_enabled=False, mig_pending=False)}

    assert [kind for kind, _ in planned(sight(record(), gpus=off))] == [
        MismatchKind.LOST_PARTITION,
        MismatchKind.MIG_MODE,
    ]


def test_a_mode_that_waits_for_a_reset_is_reported():
    assert planned(sight(gpus=on(mig_pending=False))) == [(MismatchKind.PENDING_MIG_MODE, None)]


@pytest.mark.parametrize(("shown", "differs"), [("Short", True), ("Long", False), (None, False), ("", False)])
def test_a_time_slice_that_differs_is_set_again_and_an_unknown_one_is_not(shown, differs):
    gpu = h100()
    held = record("gpu-0", gpu, time_slice="Long")
    seen = GpuSight(mig_enabled=False, mig_pending=False, time_slice=shown)

    found = planned(sight(held, roster=roster(gpu), gpus={gpu.uuid: seen}))

    assert found == ([(MismatchKind.TIME_SLICE, ApplyTimeSlice(claim_uid=UID))] if differs else [])


def test_the_count_of_what_stands_leaves_out_what_was_repaired_and_has_every_kind():
    found = tuple(
        Found(mismatch=Mismatch(kind=MismatchKind.MISSING_FILES, message=outcome), outcome=outcome)
        for outcome in Outcome
    )

    counts = SweepReport(began_s=0, took_s=0.0, found=found).count_standing()

    assert counts == dict.fromkeys(MismatchKind, 0) | {MismatchKind.MISSING_FILES: 2}


INSTANCES = st.builds(
    lambda slot, gi_id, facts: replace(live(GPU, *slot, gi_id=gi_id), **facts),
    st.sampled_from([("3g.20gb", 0), ("3g.20gb", 4), ("1g.5gb", 0), ("1g.5gb", 6), ("7g.40gb", 0)]),
    st.integers(0, 14),
    st.sampled_from([{}, {"mig_uuid": None}, {"mig_uuid": None, "ci_id": None}]),
)
RECORDS = st.builds(
    lambda device, uid, state, made: replace(record(device, uid=uid, made=made), state=state),
    st.sampled_from([DEVICE, "gpu-0-mig-1g5gb-19-6", "gpu-0"]),
    st.sampled_from([UID, OTHER_UID]),
    st.sampled_from(ClaimState),
    INSTANCES,
)
GPU_SIGHTS = st.builds(
    GpuSight,
    live=st.lists(INSTANCES, max_size=4).map(tuple),
    mig_enabled=st.booleans(),
    mig_pending=st.booleans(),
    time_slice=st.sampled_from(["", None, "Default", "Long"]),
)
CLAIM_SIGHTS = st.builds(
    ClaimSight,
    gone_for_s=st.none() | st.floats(0, 2 * GONE_S),
    holders=st.sampled_from([None, (), ("trainer (pid 4711)",)]),
)
NAMES = st.sampled_from([UID, OTHER_UID, "notes", "8f1e4c1a-0000-4d7e-9a57-7e5e1a00000", "../etc"])
SIGHTS = st.builds(
    Sight,
    boot_id=st.sampled_from(["boot-1", "boot-2"]),
    roster=st.just(roster(GPU)),
    policy=st.sampled_from([Policy(rules=(PolicyRule(mode=mode),)) for mode in Shape]),
    records=st.lists(RECORDS, max_size=2, unique_by=lambda one: one.claim.uid).map(tuple),
    steady=st.frozensets(NAMES),
    unreadable=st.lists(NAMES, max_size=1).map(tuple),
    files=st.frozensets(NAMES),
    complete=st.frozensets(NAMES),
    gpus=st.dictionaries(st.just(GPU.uuid), GPU_SIGHTS),
    claims=st.dictionaries(NAMES, CLAIM_SIGHTS),
)


@given(SIGHTS)
def test_a_repair_concerns_a_claim_with_a_record_or_with_files_of_ours(seen):
    recorded = {one.claim.uid for one in seen.records} & seen.steady
    allowed = {
        **{RecoverClaim(claim_uid=uid): None for uid in recorded},
        **{GiveBack(claim_uid=uid): None for uid in recorded},
        **{ApplyTimeSlice(claim_uid=uid): None for uid in recorded},
        **{RebuildRecord(claim_uid=uid): None for uid in seen.unreadable},
        **{RemoveFiles(claim_uid=uid): None for uid in seen.files & {UID, OTHER_UID}},
    }

    assert {one.repair for one in plan_sweep(seen) if one.repair is not None} <= allowed.keys()


@given(SIGHTS)
def test_files_are_removed_only_where_there_is_no_record(seen):
    known = {one.claim.uid for one in seen.records}.union(seen.unreadable)

    assert [
        one for one in plan_sweep(seen) if isinstance(one.repair, RemoveFiles) and one.repair.claim_uid in known
    ] == []


@given(SIGHTS)
def test_nothing_is_given_back_that_the_api_knows_or_somebody_uses(seen):
    given_back = [one.repair.claim_uid for one in plan_sweep(seen) if isinstance(one.repair, GiveBack)]

    assert all(
        seen.claims[uid].holders == () and (seen.claims[uid].gone_for_s or 0) >= GONE_S for uid in given_back
    )  # fmt: skip


@given(SIGHTS)
def test_without_records_and_files_nothing_is_repaired(seen):
    strange = replace(seen, records=(), unreadable=(), files=frozenset())

    assert [one for one in plan_sweep(strange) if one.repair is not None] == []


@given(SIGHTS)
def test_a_gpu_is_named_only_where_it_answered(seen):
    silent = replace(seen, gpus={})

    assert [one for one in plan_sweep(silent) if one.mismatch.gpu_uuid] == []


def test_the_page_for_operators_explains_every_kind():
    page = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()

    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [kind.value for kind in MismatchKind]
