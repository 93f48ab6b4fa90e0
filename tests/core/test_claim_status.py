"""Entries of a claim's status as rules: what was rendered needs no writing, whatever stood there before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tesela.core.claim_status import differ, is_allocated, plan_device_statuses, render_entries
from tesela.core.health.model import ALL_HEALTHY
from tesela.core.model import ClaimRef
from tesela.core.record import ClaimRecord, ClaimState, RecordedDevice

NOW, LATER = "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"
OTHERS = [{"driver": "net.example.com", "pool": "p", "device": "d", "conditions": None}]


def record(*devices, share_id=None, state=ClaimState.PREPARED):
    made = tuple(
        RecordedDevice(
            request="r",
            pool="p",
            device=device,
            gpu_uuid=f"GPU-{device}",
            admin_access=False,
            share_id=share_id,
            boot_id="b",
            generation=1,
        )
        for device in devices
    )
    return ClaimRecord(claim=ClaimRef(namespace="n", name="c", uid="u"), state=state, devices=made)


def render(given, before=(), now=NOW):
    return render_entries(plan_device_statuses(given, ALL_HEALTHY), before, now)


def test_a_claim_being_prepared_or_given_back_has_no_entries():
    states = (ClaimState.PREPARING, ClaimState.UNPREPARING)
    assert [plan_device_statuses(record("d", state=state), ALL_HEALTHY) for state in states] == [(), ()]


def test_two_results_of_one_device_have_one_entry():
    assert len(render(record("d", "d"))) == 1


def test_a_share_is_named():
    assert render(record("d", share_id="s"))[0]["shareID"] == "s"


@given(st.lists(st.sampled_from("abcd"), max_size=5), st.sampled_from(([], OTHERS)))
def test_what_was_rendered_does_not_differ(devices, others):
    entries = render(record(*devices))
    assert not differ(render(record(*devices), [*entries, *others], LATER), [*others, *entries])


@given(st.sets(st.sampled_from("abcd"), max_size=4), st.sets(st.sampled_from("abcd"), max_size=4))
def test_other_devices_differ(some, others):
    assert differ(render(record(*some)), render(record(*others))) == (some != others)


def test_anothers_condition_in_our_entry_is_not_looked_at():
    (entry,) = entries = render(record("d"))
    added = {"type": "Attached", "status": "True", "reason": "A", "message": "", "lastTransitionTime": NOW}
    assert not differ(entries, [{**entry, "conditions": [added, *entry["conditions"]]}])


def test_what_others_add_to_our_condition_is_not_looked_at():
    (entry,) = entries = render(record("d"))
    added = [{**one, "observedGeneration": 3} for one in entry["conditions"]]
    assert not differ(entries, [{**entry, "conditions": added}])


def test_a_changed_condition_differs():
    (entry,) = entries = render(record("d"))
    assert differ(entries, [{**entry, "conditions": [{**one, "status": "False"} for one in entry["conditions"]]}])


def test_a_claim_without_allocation_has_no_device():
    statuses = plan_device_statuses(record("d"), ALL_HEALTHY)
    assert [is_allocated(statuses, claim) for claim in ({}, {"status": {"allocation": None}})] == [False, False]


def test_a_claim_with_our_result_has_our_device():
    statuses = plan_device_statuses(record("d"), ALL_HEALTHY)
    results = [{"driver": "gpu.nvidia.com", "pool": "p", "device": "d", "request": "r"}]
    assert is_allocated(statuses, {"status": {"allocation": {"devices": {"results": results}}}})
