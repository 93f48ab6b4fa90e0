"""What Events say of a change of health, and of which changes they say nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.announcement import (
    NOTE_BYTES,
    plan_health_announcement,
    plan_set_aside_announcement,
    plan_unreadable_announcement,
)
from tesela.core.health.model import Effect, Evidence, Finding, HealthChange, HealthState
from tesela.core.model import ClaimRef, Gpu, Placement
from tesela.core.record import (
    ClaimRecord,
    ClaimState,
    PartitionRole,
    PartitionState,
    RecordedDevice,
    RecordedPartition,
)
from tesela.core.roster import EMPTY_ROSTER, KnownGpu

UUID = "GPU-1"
GPU = Gpu(
    uuid=UUID,
    index=0,
    minor=0,
    pci_bus_id="0000:01:00.0",
    product_name="NVIDIA H100",
    brand="",
    architecture="Hopper",
    cuda_compute_capability="9.0",
    memory_bytes=1,
    mig_enabled=True,
    resetless_mig=True,
    profiles=(),
)
ROSTER = replace(EMPTY_ROSTER, gpus=(KnownGpu(number=0, gpu=GPU, present=True, generation=1),))
LOW, HIGH = Placement(start=0, size=2), Placement(start=4, size=2)


def finding(signal="xid-79", state=HealthState.UNHEALTHY, message="the GPU fell off the bus", since_s=0):
    return Finding(
        signal=signal,
        gpu_uuid=UUID,
        placement=None,
        state=state,
        key="xid",
        effect=Effect.NO_SCHEDULE,
        evidence=Evidence.RESET,
        reason="79",
        message=message,
        since_s=since_s,
        last_s=0,
        count=1,
        boot_id="",
        epoch="",
        generation=1,
    )


FOUND = (finding(),)


def change(before="healthy", after="unhealthy", placement=None, added=FOUND, removed=(), **fields):
    states = {"before": HealthState(before), "after": HealthState(after)}
    return HealthChange(gpu_uuid=UUID, placement=placement, added=added, removed=removed, **states, **fields)


def record(name, placement=None, gpu_uuid=UUID):
    partition = RecordedPartition(
        profile_id=1,
        profile="1g",
        placement=placement or LOW,
        role=PartitionRole.CURRENT,
        state=PartitionState.PREPARED,
        ours=True,
    )
    device = RecordedDevice(
        request="r",
        pool="p",
        device="d",
        gpu_uuid=gpu_uuid,
        admin_access=False,
        share_id=None,
        boot_id="",
        generation=1,
        partitions=(partition,) if placement else (),
    )
    ref = ClaimRef(namespace="team", name=name, uid=name)
    return ClaimRecord(claim=ref, state=ClaimState.PREPARED, devices=(device,))


def announce(changed, records=(), roster=ROSTER):
    return plan_health_announcement(changed, roster, records, lambda unix_s: f"T{unix_s}")


def test_a_fault_names_the_gpu_the_cause_and_the_time():
    note = announce(change(added=(finding(since_s=7),))).note
    assert note == ("gpu-0 (GPU-1, NVIDIA H100) is unhealthy since T7: the GPU fell off the bus; no claim holds it")


def test_a_fault_names_the_claims_on_the_gpu():
    note = announce(change(), [record("a"), record("b", LOW), record("c", gpu_uuid="GPU-2")]).note
    assert note.endswith("; held by team/a, team/b")


def test_a_fault_of_a_partition_names_the_claims_that_overlap_it():
    note = announce(change(placement=LOW), [record("a", LOW), record("b", HIGH), record("c")]).note
    assert note.endswith("; held by team/a, team/c")


def test_a_fault_of_a_partition_names_its_memory_slices():
    assert announce(change(placement=HIGH)).note.startswith("the partition on memory slices 4 to 5 of gpu-0 (GPU-1,")


def test_a_partition_of_one_slice_is_on_one_slice():
    one = Placement(start=6, size=1)
    assert announce(change(placement=one)).note.startswith("the partition on memory slice 6 of gpu-0 (GPU-1,")


def test_many_claims_are_counted():
    note = announce(change(), [record(f"c{number}") for number in range(11)]).note
    assert note.endswith("team/c7 and 3 more")


def test_a_gpu_that_was_forgotten_did_not_recover():
    gone = change(before="gone", after="healthy", added=(), removed=(finding(signal="gone"),))
    assert (announce(gone, roster=EMPTY_ROSTER), announce(gone).reason) == (None, "GPURecovered")


def test_a_gpu_that_nobody_knows_is_named_by_its_uuid():
    assert announce(change(), roster=EMPTY_ROSTER).note.startswith("GPU-1 is unhealthy")


@pytest.mark.parametrize(
    ("after", "reason", "kind"),
    [
        ("degraded", "GPUDegraded", "Warning"),
        ("unhealthy", "GPUUnhealthy", "Warning"),
        ("gone", "GPUGone", "Warning"),
    ],
)
def test_a_worse_state_is_a_warning(after, reason, kind):
    said = announce(change(after=after))
    assert (said.reason, said.kind) == (reason, kind)


def test_a_recovery_is_normal_and_says_what_is_over():
    said = announce(change("unhealthy", "healthy", added=(), removed=(finding(),)))
    assert (said.reason, said.kind, "is healthy again: xid-79 is over" in said.note) == ("GPURecovered", "Normal", True)


def test_a_recovery_by_a_person_says_so():
    said = announce(change("unhealthy", "healthy", added=(), removed=(finding(),), cause="cleared by ann: replaced"))
    assert "xid-79 is over, cleared by ann: replaced" in said.note


def test_a_partial_recovery_says_what_it_was():
    said = announce(change("unhealthy", "degraded", added=(), removed=(finding(),)))
    assert (said.reason, "is degraded, no longer unhealthy: xid-79 is over" in said.note) == ("GPUDegraded", True)


def test_another_fault_of_an_unhealthy_gpu_is_told():
    said = announce(change("unhealthy", "unhealthy", added=(finding("ecc"),)))
    assert said.reason == "GPUUnhealthy"


def test_one_fault_less_of_a_gpu_that_stays_unhealthy_is_not_told():
    assert announce(change("unhealthy", "unhealthy", added=(), removed=(finding(),))) is None


def test_what_an_application_did_to_itself_is_not_told():
    harmless = finding("xid-31", HealthState.HEALTHY)
    assert announce(change("healthy", "healthy", added=(harmless,))) is None


def test_the_same_change_has_the_same_key_whenever_it_comes():
    keys = {announce(change(added=(finding(since_s=since_s),))).key for since_s in (1, 2)}
    assert len(keys) == 1


def test_one_occurrence_has_one_identity_whoever_holds_the_gpu():
    identities = {announce(change(), records).identity for records in ([], [record("a")])}
    assert len(identities) == 1


def test_another_occurrence_of_the_same_has_another_identity():
    identities = {announce(change(added=(finding(since_s=since_s),))).identity for since_s in (1, 2)}
    assert len(identities) == 2


def test_the_same_change_under_other_claims_has_another_key():
    keys = {announce(change(), records).key for records in ([], [record("a")], [record("b")])}
    assert len(keys) == 3


def test_changes_of_different_places_have_different_keys():
    keys = {announce(change(placement=placement)).key for placement in (None, LOW, HIGH)}
    assert len(keys) == 3


def test_a_file_set_aside_is_a_warning_related_to_its_claim():
    ref = ClaimRef(namespace="team", name="a", uid="u")
    said = plan_set_aside_announcement("the record was damaged", ref)
    assert (said.kind, said.reason, said.claim) == ("Warning", "RecordSetAside", ref)


def test_a_record_that_nobody_can_read_is_a_warning():
    said = plan_unreadable_announcement("the record is damaged")
    assert (said.kind, said.reason, said.note) == ("Warning", "RecordUnreadable", "the record is damaged")


@given(message=st.text(max_size=3000), names=st.lists(st.text("äa", min_size=1, max_size=300), max_size=12))
def test_a_note_always_fits(message, names):
    said = announce(change(added=(finding(message=message),)), [record(name) for name in names])
    assert 0 < len(said.note.encode()) <= NOTE_BYTES
