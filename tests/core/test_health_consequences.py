"""What follows from findings: fences, the attribute, sentences, and what a person may take back."""

from __future__ import annotations

import pytest
from gpu_models import a100, known, roster
from health_world import GPU, NOW_S, OTHER, PLACES, ROSTER, healths, signals_of, tell
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.errors import StateError
from tesela.core.health.model import ALL_HEALTHY, Effect, HealthState
from tesela.core.health.observations import GpuLost, ModeHeld, NodeMissing, Reading, Wedged, XidSeen
from tesela.core.health.rules import (
    MESSAGE_BYTES,
    describe,
    differ_in_counts_only,
    plan_changes,
    plan_clear,
    plan_fences,
    plan_health,
    render_attribute,
)
from tesela.core.health.signals import DEFAULT_HEALTH_POLICY, DEFAULT_TABLE, Override, apply_overrides
from tesela.core.model import Placement

ONE_AT_3 = Placement(start=3, size=1)


def taints_of(health, gpu_uuid=GPU, placement=None):
    return [
        (one.key.removeprefix("gpu.nvidia.com/"), one.value, one.effect)
        for one in plan_fences(health, ROSTER)
        if one.covers(gpu_uuid, placement)
    ]


@pytest.mark.parametrize(
    ("told", "taint"),
    [
        (XidSeen(gpu_uuid=GPU, xid=48), ("xid", "48", "NoSchedule")),
        (Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=1), ("ecc", "uncorrected-volatile", "NoSchedule")),
        (Reading(gpu_uuid=GPU, remap_pending=True), ("remap", "pending", "NoSchedule")),
        (Reading(gpu_uuid=GPU, recovery_action=1), ("recovery-action", "gpu-reset", "NoSchedule")),
        (Reading(gpu_uuid=GPU, recovery_action=42), ("recovery-action", "action-42", "NoSchedule")),
        (Reading(gpu_uuid=GPU, fabric_state=1), ("fabric", "not-started", "NoSchedule")),
        (Reading(gpu_uuid=GPU, fabric_state=3, fabric_status=19), ("fabric", "failed-19", "NoSchedule")),
        (GpuLost(gpu_uuid=GPU), ("gpu-lost", "gpu-is-lost", "NoSchedule")),
        (Wedged(whole_node=True), ("wedged", "nvml-call-hangs", "NoSchedule")),
        (NodeMissing(gpu_uuid=GPU, path="/dev/nvidia3"), ("device-node", "dev-nvidia3-missing", "NoSchedule")),
        (
            ModeHeld(gpu_uuid=GPU, wants_mig=False, holder="python (4711)"),
            ("mode-held", "mig-off-held-by-python--4711", "NoSchedule"),
        ),
    ],
)
def test_a_finding_taints_with_its_reason(told, taint):
    assert taints_of(tell(told)) == [taint]


def test_a_long_holder_fits_a_label():
    health = tell(ModeHeld(gpu_uuid=GPU, wants_mig=False, holder="x" * 200))

    assert len(taints_of(health)[0][1]) == 63


@pytest.mark.parametrize(("wants_mig", "fenced"), [(True, [False, True]), (False, [True, False])])
def test_a_held_mode_fences_the_devices_of_the_other_mode_alone(wants_mig, fenced):
    health = tell(ModeHeld(gpu_uuid=GPU, wants_mig=wants_mig, holder="python (7)"))

    assert [bool(taints_of(health, placement=place)) for place in (None, ONE_AT_3)] == fenced


def test_a_fabric_that_is_not_ready_leaves_partitions_alone():
    assert tell(Reading(gpu_uuid=GPU, fabric_state=1)).state_of(GPU, ONE_AT_3) is HealthState.HEALTHY


def test_what_is_only_counted_taints_nothing():
    assert taints_of(tell(XidSeen(gpu_uuid=GPU, xid=13))) == []


def test_of_one_key_the_worst_comes_first():
    health = tell(XidSeen(gpu_uuid=GPU, xid=92), XidSeen(gpu_uuid=GPU, xid=119))

    assert taints_of(health)[0] == ("xid", "119", "NoSchedule")


def test_an_effect_of_none_taints_nothing():
    policy = apply_overrides(DEFAULT_TABLE, [Override(signal="xid-48", effect=Effect.NONE)])

    health = tell(XidSeen(gpu_uuid=GPU, xid=48), policy=policy)

    assert (taints_of(health), health.state_of(GPU, None)) == ([], HealthState.UNHEALTHY)


def test_a_gpu_that_the_roster_does_not_know_is_not_fenced():
    assert plan_fences(tell(XidSeen(gpu_uuid=GPU, xid=48)), roster()) == ()


@given(healths, st.sampled_from(PLACES))
def test_the_attribute_is_the_state(health, place):
    assert render_attribute(health, ROSTER.gpus[0], place) == health.state_of(GPU, place)


def test_an_absent_gpu_is_gone_whatever_was_found():
    assert render_attribute(ALL_HEALTHY, known(a100(0), present=False), None) == "gone"


@given(healths, st.sampled_from(PLACES))
def test_a_sentence_fits_what_the_kubelet_keeps(health, place):
    assert len(describe(health, GPU, place).encode()) <= MESSAGE_BYTES


@given(healths, st.sampled_from(PLACES))
def test_there_is_a_sentence_unless_the_device_is_healthy(health, place):
    assert bool(describe(health, GPU, place)) == (health.state_of(GPU, place) is not HealthState.HEALTHY)


def test_a_sentence_says_what_it_is_what_to_do_and_until_when():
    assert describe(tell(XidSeen(gpu_uuid=GPU, xid=109)), GPU, None) == (
        "unhealthy, Xid 109, context switch timeout: drain the GPU and reset it (until the GPU is reset)"
    )


def test_too_many_findings_are_cut():
    health = tell(*(XidSeen(gpu_uuid=GPU, xid=xid) for xid in range(1, 40)))

    assert describe(health, GPU, None).endswith("...")


def test_what_is_only_counted_is_no_change():
    assert plan_changes(ALL_HEALTHY, tell(XidSeen(gpu_uuid=GPU, xid=13))) == ()


def test_a_change_names_its_partition_and_how_it_was_and_is():
    _, changes = plan_health(
        ALL_HEALTHY,
        DEFAULT_HEALTH_POLICY,
        [XidSeen(gpu_uuid=GPU, xid=48, placement=ONE_AT_3)],
        roster=ROSTER,
        now_s=NOW_S,
    )

    assert [(one.placement, one.before, one.after) for one in changes] == [
        (ONE_AT_3, HealthState.HEALTHY, HealthState.UNHEALTHY)
    ]


def test_a_storm_differs_in_counts_only():
    before = tell(XidSeen(gpu_uuid=GPU, xid=48))

    after = tell(XidSeen(gpu_uuid=GPU, xid=48, count=1000), health=before, now_s=NOW_S + 1)

    assert differ_in_counts_only(before, after)


def test_another_finding_differs_in_more():
    before = tell(XidSeen(gpu_uuid=GPU, xid=48))

    assert not differ_in_counts_only(before, tell(XidSeen(gpu_uuid=GPU, xid=13), health=before))


def clear(health, signal=None, gpu_uuid=GPU):
    return plan_clear(health, gpu_uuid, signal, reason="board replaced", who="root", now_s=NOW_S + 9)


def test_a_person_takes_everything_of_a_gpu_back():
    health = tell(
        XidSeen(gpu_uuid=GPU, xid=48, placement=ONE_AT_3),
        Reading(gpu_uuid=GPU, remap_failure=True),
        XidSeen(gpu_uuid=OTHER, xid=48),
    )

    after = clear(health)

    assert (signals_of(after), signals_of(after, OTHER)) == ([], ["xid-48"])


def test_a_person_takes_one_signal_back():
    health = tell(XidSeen(gpu_uuid=GPU, xid=48), XidSeen(gpu_uuid=GPU, xid=119))

    assert signals_of(clear(health, "xid-119")) == ["xid-48"]


def test_what_stands_is_named_where_there_is_nothing_to_take_back():
    with pytest.raises(StateError, match=r"no finding xid-1 stands on .*; these do: xid-48"):
        clear(tell(XidSeen(gpu_uuid=GPU, xid=48)), "xid-1")


def test_the_change_says_who_cleared_it_and_why():
    health = tell(XidSeen(gpu_uuid=GPU, xid=48))

    assert [one.cause for one in plan_changes(health, clear(health))] == ["cleared by root: board replaced"]


@pytest.mark.parametrize(("count", "stands"), [(70, []), (71, ["ecc-uncorrected-aggregate"])])
def test_a_cleared_counter_counts_from_where_it_was(count, stands):
    health = clear(tell(Reading(gpu_uuid=GPU, ecc_uncorrected_aggregate=70)))

    assert signals_of(tell(Reading(gpu_uuid=GPU, ecc_uncorrected_aggregate=count), health=health)) == stands


def test_a_cleared_counter_that_a_reset_set_back_counts_anew():
    health = clear(tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=9)))

    reset = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=0), health=health)

    assert signals_of(tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=1), health=reset)) == [
        "ecc-uncorrected-volatile"
    ]


def test_a_cleared_condition_that_is_still_so_is_found_again():
    health = clear(tell(Reading(gpu_uuid=GPU, remap_failure=True)))

    assert signals_of(tell(Reading(gpu_uuid=GPU, remap_failure=True), health=health)) == ["remap-failure"]


def test_a_clearance_is_kept_until_the_signal_is_seen_again():
    cleared = clear(tell(XidSeen(gpu_uuid=GPU, xid=48)))

    again = tell(XidSeen(gpu_uuid=GPU, xid=48), health=cleared)

    assert (len(tell(health=cleared).clearances), len(again.clearances)) == (1, 0)
