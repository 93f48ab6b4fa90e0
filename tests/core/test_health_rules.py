"""What holds for every health: worst wins, order does not matter, recovery needs its evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_models import a100, known, roster
from health_world import (
    DEVICES,
    GPU,
    NOW_S,
    OTHER,
    PLACES,
    ROSTER,
    conditions,
    healths,
    observations,
    signals_of,
    storms,
    tell,
    xids,
)
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.geometry import overlap
from tesela.core.health.model import ALL_HEALTHY, Evidence, HealthState, Reach
from tesela.core.health.observations import (
    GpuAnswers,
    GpuLost,
    ModeFree,
    ModeHeld,
    NodeMissing,
    NodePresent,
    Reading,
    ResetSeen,
    StormSeen,
    Wedged,
    XidSeen,
)
from tesela.core.health.rules import plan_changes
from tesela.core.model import Placement

ONE_AT_3 = Placement(start=3, size=1)
XID_109 = XidSeen(gpu_uuid=GPU, xid=109)


@given(healths, st.lists(xids | storms, max_size=5))
def test_no_event_improves_any_device(health, events):
    after = tell(*events, health=health)

    assert all(after.state_of(*device).severity >= health.state_of(*device).severity for device in DEVICES)


@given(healths, st.lists(observations, max_size=6))
def test_the_state_is_that_of_the_worst_finding_that_concerns_the_device(health, told):
    after = tell(*told, health=health)

    for device in DEVICES:
        states = [one.state.severity for one in after.findings if one.concerns(*device)]
        assert after.state_of(*device).severity == max(states, default=0)


@given(healths, st.lists(observations, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_independent_observations_does_not_matter(health, told, random):
    independent = {
        (type(one), getattr(one, "gpu_uuid", ""), getattr(one, "placement", None), getattr(one, "xid", 0)): one
        for one in told
        if not isinstance(one, GpuLost | NodeMissing | ModeHeld)  # these and their opposites depend on each other
    }
    shuffled = list(independent.values())
    random.shuffle(shuffled)

    assert tell(*shuffled, health=health) == tell(*independent.values(), health=health)


@given(healths, conditions)
def test_the_same_condition_told_again_changes_nothing(health, condition):
    once = tell(condition, health=health)

    assert tell(condition, health=once, now_s=NOW_S + 60) == once


@given(healths)
def test_nothing_told_changes_nothing(health):
    assert tell(health=health, now_s=NOW_S + 60) == health


@given(st.lists(xids | storms, min_size=1, max_size=5), st.lists(conditions, max_size=5))
def test_what_only_events_tell_stays_until_a_reset_is_proved(events, told):
    raised = tell(*events)

    after = tell(*told, health=raised)  # no recovery action stood and no GPU was lost, so nothing here proves a reset

    assert set(raised.findings) <= set(after.findings)


@given(healths, st.sampled_from(PLACES))
def test_a_fault_of_the_gpu_reaches_every_partition(health, place):
    assert tell(XID_109, health=health).state_of(GPU, place).severity >= HealthState.UNHEALTHY.severity


@given(st.sampled_from(PLACES[1:]), st.sampled_from(PLACES[1:]))
def test_a_fault_of_a_partition_reaches_what_overlaps_it_alone(struck, place):
    health = tell(XidSeen(gpu_uuid=GPU, xid=48, placement=struck))

    assert (health.state_of(GPU, place) is HealthState.UNHEALTHY) == overlap(struck, place)


def test_a_fault_of_a_partition_reaches_the_whole_gpu_device():
    health = tell(XidSeen(gpu_uuid=GPU, xid=48, placement=ONE_AT_3))

    assert health.state_of(GPU, None) is HealthState.UNHEALTHY


def test_a_fault_stays_on_its_gpu():
    assert signals_of(tell(XID_109), OTHER) == []


@given(healths, healths)
def test_changes_tell_how_to_get_from_one_health_to_another(before, after):
    changes = plan_changes(before, after)

    came = {one for change in changes for one in change.added}
    went = {one for change in changes for one in change.removed}
    condemning = [
        {one for one in health.findings if one.state is not HealthState.HEALTHY} for health in (before, after)
    ]
    names = [{(one.rank, one.state, one.since_s) for one in found} for found in (*condemning, came, went)]
    assert names[1] == (names[0] - names[3]) | names[2]


def _with_generation(generation):
    return replace(ROSTER, gpus=(replace(ROSTER.gpus[0], generation=generation), ROSTER.gpus[1]))


rosters = st.builds(
    lambda boot, module, generations, present: replace(
        ROSTER,
        boot_id=boot,
        module_token=module,
        gpus=tuple(
            replace(one, generation=generation, present=here)
            for one, generation, here in zip(ROSTER.gpus, generations, present, strict=True)
        ),
    ),
    boot=st.sampled_from(("boot-1", "boot-2")),
    module=st.sampled_from(("module-1", "module-2")),
    generations=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    present=st.tuples(st.booleans(), st.booleans()),
)
histories = st.lists(st.tuples(st.lists(observations, max_size=4), rosters), min_size=1, max_size=5)


def _live_through(history, health=ALL_HEALTHY):
    for step, (told, seen) in enumerate(history):
        health = tell(*told, health=health, roster=seen, now_s=NOW_S + step)
    return health


@given(histories)
def test_after_any_history_findings_are_in_order_and_no_two_are_one(history):
    ranks = [one.rank for one in _live_through(history).findings]

    assert ranks == sorted(set(ranks))


@given(histories)
def test_after_any_history_what_is_gone_is_what_the_roster_misses(history):
    gone = {one.gpu_uuid for one in _live_through(history).findings if one.signal == "gone"}

    assert gone == {one.gpu.uuid for one in history[-1][1].gpus if not one.present}


@given(healths, histories)
def test_what_waits_for_a_person_outlives_any_history(health, history):
    waiting = {one.rank for one in health.findings if one.evidence is Evidence.PERSON}

    assert waiting <= {one.rank for one in _live_through(history, health).findings}


@given(healths, histories)
def test_what_waits_for_a_boot_outlives_any_history_without_one(health, history):
    waiting = {one.rank for one in health.findings if one.evidence is Evidence.BOOT}
    one_boot = [(told, replace(seen, boot_id="boot-1")) for told, seen in history]

    assert waiting <= {one.rank for one in _live_through(one_boot, health).findings}


RESETS = {
    "another boot": ((), replace(ROSTER, boot_id="boot-2")),
    "the module loaded anew": ((), replace(ROSTER, module_token="module-2")),
    "somebody who knows": ((ResetSeen(gpu_uuid=GPU),), ROSTER),
}


@pytest.mark.parametrize(("told", "seen"), RESETS.values(), ids=RESETS)
def test_a_reset_is_proved_by(told, seen):
    assert signals_of(tell(*told, health=tell(XID_109), roster=seen)) == []


@pytest.mark.parametrize("seen", [Wedged(gpu_uuids=frozenset({"at index 3"})), XidSeen(gpu_uuid="GPU-9", xid=79)])
def test_nothing_stands_against_a_gpu_that_the_roster_does_not_know(seen):
    """It would go again at once, and come again, every two seconds for ever."""
    assert tell(seen) == ALL_HEALTHY


def test_partitions_that_went_prove_none_by_themselves():
    """Somebody may have destroyed them by hand: whether it was a reset is told by `ResetSeen`."""
    assert signals_of(tell(health=tell(XID_109), roster=_with_generation(2))) == ["xid-109"]


def test_a_reset_is_proved_by_a_recovery_action_that_is_done():
    health = tell(XID_109, Reading(gpu_uuid=GPU, recovery_action=1))

    assert signals_of(tell(Reading(gpu_uuid=GPU, recovery_action=0), health=health)) == []


def test_an_action_that_needs_no_reset_proves_none():
    health = tell(XID_109, Reading(gpu_uuid=GPU, recovery_action=3))

    assert signals_of(tell(Reading(gpu_uuid=GPU, recovery_action=0), health=health)) == ["xid-109"]


def test_an_action_that_gives_way_to_another_proves_none():
    health = tell(XID_109, Reading(gpu_uuid=GPU, recovery_action=4))

    after = tell(Reading(gpu_uuid=GPU, recovery_action=1), health=health)

    assert signals_of(after) == ["recovery-action-gpu-reset", "xid-109"]


def test_a_lost_gpu_that_answers_was_reset():
    health = tell(XidSeen(gpu_uuid=GPU, xid=79), GpuLost(gpu_uuid=GPU))

    assert signals_of(tell(GpuAnswers(gpu_uuid=GPU), health=health)) == []


def test_a_volatile_counter_that_fell_proves_a_reset():
    health = tell(XidSeen(gpu_uuid=GPU, xid=48), Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=2))

    assert signals_of(tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=0), health=health)) == []


def test_a_look_takes_back_nothing_that_was_found_while_it_lasted():
    before = tell(XidSeen(gpu_uuid=GPU, xid=62))
    meanwhile = tell(XidSeen(gpu_uuid=GPU, xid=79), GpuLost(gpu_uuid=GPU), health=before)

    after = tell(GpuAnswers(gpu_uuid=GPU), health=meanwhile, since=before)

    assert after == meanwhile


def test_a_count_that_is_older_than_what_it_is_held_against_fell_nowhere():
    before = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=5), XID_109)
    meanwhile = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=6), health=before)

    after = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=5), health=meanwhile, since=before)

    assert after == meanwhile


def test_what_the_roster_tells_is_of_now_however_long_a_look_took():
    meanwhile = tell(roster=roster(known(a100(0), present=False)))

    assert tell(health=meanwhile, since=ALL_HEALTHY) == ALL_HEALTHY


def test_what_comes_together_with_the_proof_of_a_reset_stands():
    after = tell(ResetSeen(gpu_uuid=GPU), XidSeen(gpu_uuid=GPU, xid=119), health=tell(XID_109))

    assert signals_of(after) == ["xid-119"]


def test_a_reload_is_no_boot():
    health = tell(XidSeen(gpu_uuid=GPU, xid=54))

    assert signals_of(tell(health=health, roster=replace(ROSTER, module_token="module-2"))) == ["xid-54"]


def test_a_boot_is_one():
    health = tell(XidSeen(gpu_uuid=GPU, xid=54))

    assert signals_of(tell(health=health, roster=replace(ROSTER, boot_id="boot-2"))) == []


def test_a_boot_takes_back_no_failed_board():
    health = tell(Reading(gpu_uuid=GPU, remap_failure=True))

    after = tell(Reading(gpu_uuid=GPU, remap_failure=False), health=health, roster=replace(ROSTER, boot_id="boot-2"))

    assert signals_of(after) == ["remap-failure"]


def test_what_was_seen_after_a_boot_stands_when_the_generation_follows_late():
    behind = replace(ROSTER.gpus[0], epoch=ROSTER.epoch)
    booted = replace(ROSTER, boot_id="boot-2", gpus=(behind, ROSTER.gpus[1]))
    health = tell(XID_109, roster=booted)

    followed = replace(behind, generation=2, epoch=booted.epoch)

    assert signals_of(tell(health=health, roster=replace(booted, gpus=(followed, ROSTER.gpus[1])))) == ["xid-109"]


def test_what_was_seen_before_the_roster_was_known_belongs_to_the_first_life_told():
    early = tell(XID_109, roster=roster())

    settled = tell(health=early)

    assert [(one.boot_id, one.generation) for one in settled.findings] == [("boot-1", 1)]


@pytest.mark.parametrize(
    ("so", "clear"),
    [
        (GpuLost(gpu_uuid=GPU), GpuAnswers(gpu_uuid=GPU)),
        (NodeMissing(gpu_uuid=GPU, path="/dev/nvidia0"), NodePresent(gpu_uuid=GPU)),
        (ModeHeld(gpu_uuid=GPU, wants_mig=True, holder="python (7)"), ModeFree(gpu_uuid=GPU)),
        (Wedged(gpu_uuids=frozenset({GPU})), Wedged(gpu_uuids=frozenset({OTHER}), ended=frozenset({GPU}))),
        (Wedged(gpu_uuids=frozenset({GPU})), GpuAnswers(gpu_uuid=GPU)),
        (Reading(gpu_uuid=GPU, fabric_state=2), Reading(gpu_uuid=GPU, fabric_state=3)),
        (Reading(gpu_uuid=GPU, fabric_state=3, fabric_status=999), Reading(gpu_uuid=GPU, fabric_state=3)),
        (Reading(gpu_uuid=GPU, remap_pending=True), Reading(gpu_uuid=GPU, remap_pending=False)),
        (Reading(gpu_uuid=GPU, recovery_action=5), Reading(gpu_uuid=GPU, recovery_action=0)),
        (Reading(gpu_uuid=GPU, recovery_action=99), Reading(gpu_uuid=GPU, recovery_action=0)),
    ],
)
def test_a_condition_stands_until_it_reads_clear(so, clear):
    raised = tell(so)

    assert (len(signals_of(raised)), signals_of(tell(clear, health=raised))) == (1, [])


@given(healths)
def test_a_reading_of_nothing_changes_nothing(health):
    assert tell(Reading(gpu_uuid=GPU), health=health) == health


def test_volatile_errors_stand_while_their_count_does():
    health = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=2))

    after = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=5), health=health, now_s=NOW_S + 9)

    assert [(one.count, one.since_s, one.last_s) for one in after.findings] == [(5, NOW_S, NOW_S + 9)]


def test_a_volatile_count_that_fell_was_reset():
    health = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=2))

    assert signals_of(tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=0), health=health)) == []


def test_new_errors_after_a_reset_are_a_new_finding():
    health = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=5))

    after = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=1), health=health, now_s=NOW_S + 9)

    assert [(one.count, one.since_s) for one in after.findings] == [(1, NOW_S + 9)]


def test_a_counter_that_waits_for_a_person_keeps_the_most_it_read():
    health = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_aggregate=90))

    after = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_aggregate=70), health=health)

    assert [one.count for one in after.findings] == [90]


def test_another_holder_of_the_mode_is_named():
    health = tell(ModeHeld(gpu_uuid=GPU, wants_mig=True, holder="python (7)"))

    after = tell(ModeHeld(gpu_uuid=GPU, wants_mig=False, holder="java (8)"), health=health)

    assert [(one.reason, one.reach) for one in after.findings] == [("mig-off-held-by-java--8", Reach.WHOLE)]


def test_a_count_below_its_threshold_is_nothing():
    assert signals_of(tell(Reading(gpu_uuid=GPU, ecc_uncorrected_aggregate=63))) == []


def test_equal_events_are_counted_in_one_finding():
    health = tell(XidSeen(gpu_uuid=GPU, xid=13, count=600), XidSeen(gpu_uuid=GPU, xid=13, count=400))

    assert [(one.signal, one.count) for one in health.findings] == [("xid-13", 1000)]


def test_a_storm_of_corrected_errors_degrades():
    assert tell(StormSeen(gpu_uuid=GPU)).state_of(GPU, None) is HealthState.DEGRADED


def test_a_gpu_that_nvml_does_not_list_is_gone_until_it_is_back():
    away = roster(known(a100(0), present=False))

    gone = tell(roster=away)

    assert (gone.state_of(GPU, None), signals_of(tell(health=gone))) == (HealthState.GONE, [])


def test_what_stood_against_a_forgotten_gpu_is_forgotten():
    assert signals_of(tell(health=tell(XID_109), roster=roster(ROSTER.gpus[1]))) == []


def test_a_clock_set_back_moves_nothing_back():
    after = tell(XID_109, health=tell(XID_109), now_s=NOW_S - 5000)

    assert [(one.since_s, one.last_s, one.count) for one in after.findings] == [(NOW_S, NOW_S, 2)]


def test_a_process_that_hangs_nowhere_says_nothing_of_the_hangs_of_another():
    health = tell(Wedged(gpu_uuids=frozenset({GPU})))

    assert tell(Wedged(), health=health) == health


def test_a_gpu_that_answers_another_call_hangs_nonetheless():
    hangs, answers = Wedged(gpu_uuids=frozenset({GPU})), GpuAnswers(gpu_uuid=GPU)

    assert [signals_of(tell(*told)) for told in ((hangs, answers), (answers, hangs))] == [["wedged"], ["wedged"]]
