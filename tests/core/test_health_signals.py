"""The table itself, and how an operator changes it."""

from __future__ import annotations

import re

import pytest
from health_world import GPU, tell
from tesela.core.errors import DocumentError
from tesela.core.health.model import Counted, Effect, Evidence, HealthState
from tesela.core.health.observations import Reading, XidSeen
from tesela.core.health.signals import DEFAULT_TABLE, RECOVERY_ACTIONS, Override, apply_overrides
from tesela.core.health.xids import XIDS
from tesela.core.slices.state import render_label_value

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
KEYS = {
    *("xid", "ecc", "remap", "recovery-action", "gpu-lost", "gone", "wedged", "device-node", "fabric", "mode-held"),
    "mps",
}

SPARING = ("wedged", "device-node")


def policy_of(*overrides):
    return apply_overrides(DEFAULT_TABLE, overrides)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 94])
def test_an_application_error_condemns_no_hardware(xid):
    assert tell(XidSeen(gpu_uuid=GPU, xid=xid)).state_of(GPU, None) is HealthState.HEALTHY


@pytest.mark.parametrize("xid", [48, 64, 74, 79, 95, 109, 119, 120, 140])
def test_a_serious_error_is_unhealthy_until_a_reset(xid):
    row = DEFAULT_TABLE[f"xid-{xid}"]

    assert (row.state, row.evidence) == (HealthState.UNHEALTHY, Evidence.RESET)


@pytest.mark.parametrize("xid", [63, 92, 5, 999])
def test_an_error_that_may_wait_and_one_that_is_not_known_degrade(xid):
    assert tell(XidSeen(gpu_uuid=GPU, xid=xid)).state_of(GPU, None) is HealthState.DEGRADED


def test_no_xid_has_two_rows():
    assert len({row[0] for row in XIDS}) == len(XIDS)


def test_no_row_evicts_by_default():
    assert [name for name, row in DEFAULT_TABLE.items() if row.effect is Effect.NO_EXECUTE] == []


def test_every_row_that_condemns_keeps_new_claims_away():
    condemning = [row for row in DEFAULT_TABLE.values() if row.state is not HealthState.HEALTHY]

    assert {row.effect for row in condemning} == {Effect.NO_SCHEDULE}


def test_every_row_says_what_it_is_what_to_do_and_where_that_comes_from():
    assert [row.name for row in DEFAULT_TABLE.values() if not (row.meaning and row.remedy and row.source)] == []


def test_every_value_is_one_of_a_label():
    assert [row.name for row in DEFAULT_TABLE.values() if not LABEL.fullmatch(row.value)] == []


def test_no_value_is_changed_on_its_way_to_the_taint():
    assert {render_label_value(row.value) for row in DEFAULT_TABLE.values()} == {
        r.value for r in DEFAULT_TABLE.values()
    }


def test_the_keys_are_these():
    assert {row.key for row in DEFAULT_TABLE.values()} == KEYS


def test_every_recovery_action_has_a_row():
    assert set(RECOVERY_ACTIONS) == {name for name in DEFAULT_TABLE if name.startswith("recovery-action-")}


def test_a_changed_threshold_counts_before_it_condemns():
    policy = policy_of(Override(signal="xid-94", state=HealthState.DEGRADED, threshold=3))
    twice = tell(XidSeen(gpu_uuid=GPU, xid=94, count=2), policy=policy)

    thrice = tell(XidSeen(gpu_uuid=GPU, xid=94), health=twice, policy=policy)

    assert [one.state_of(GPU, None) for one in (twice, thrice)] == [HealthState.HEALTHY, HealthState.DEGRADED]


def test_what_stands_is_read_by_todays_policy():
    health = tell(XidSeen(gpu_uuid=GPU, xid=48))

    after = tell(health=health, policy=policy_of(Override(signal="xid-48", effect=Effect.NO_EXECUTE)))

    assert [one.effect for one in after.findings] == [Effect.NO_EXECUTE]


def test_a_counter_that_todays_policy_counts_from_further_up_stands_no_longer():
    health = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_aggregate=70))

    after = tell(health=health, policy=policy_of(Override(signal="ecc-uncorrected-aggregate", threshold=500)))

    assert after.findings == ()


def test_a_volatile_counter_that_fell_began_anew_also_where_a_reading_takes_it_back():
    policy = policy_of(Override(signal="ecc-uncorrected-volatile", evidence=Evidence.READING))
    health = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=5), policy=policy)

    after = tell(Reading(gpu_uuid=GPU, ecc_uncorrected_volatile=2), health=health, policy=policy)

    assert [one.count for one in after.findings] == [2]


def test_an_unknown_xid_gets_a_row_from_the_policy():
    policy = policy_of(Override(signal="xid-500", state=HealthState.UNHEALTHY, evidence=Evidence.PERSON))

    finding = tell(XidSeen(gpu_uuid=GPU, xid=500), policy=policy).findings[0]

    assert (finding.state, finding.evidence, finding.reason) == (HealthState.UNHEALTHY, Evidence.PERSON, "500")


def test_all_unknown_xids_can_be_made_harmless_at_once():
    policy = policy_of(Override(signal="xid-other", state=HealthState.HEALTHY))

    assert tell(XidSeen(gpu_uuid=GPU, xid=500), policy=policy).state_of(GPU, None) is HealthState.HEALTHY


def test_a_harmless_row_that_condemns_now_keeps_new_claims_away():
    row = policy_of(Override(signal="xid-13", state=HealthState.DEGRADED)).find("xid-13")

    assert row is not None
    assert row.effect is Effect.NO_SCHEDULE


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((Override(signal="xid", state=HealthState.HEALTHY),), r"health.signals\[0\].signal: there is no signal 'xid'"),
        ((Override(signal="gone", threshold=2),), r"health.signals\[0\].threshold: gone is a state"),
        ((Override(signal="xid-48", evidence=Evidence.READING),), r"health.signals\[0\].recovery: xid-48 is an event"),
        ((Override(signal="xid-13", effect=Effect.NO_EXECUTE),), r"health.signals\[0\].effect: xid-13 is healthy"),
        ((Override(signal="xid-1", threshold=2), Override(signal="xid-1", threshold=3)), r"signals\[1\].* named twice"),
    ],
)
def test_an_override_that_cannot_be_names_itself(overrides, message):
    with pytest.raises(DocumentError, match=message):
        policy_of(*overrides)


def test_states_have_the_threshold_one():
    assert {row.threshold for row in DEFAULT_TABLE.values() if row.counted is Counted.STATE} == {1}


def test_effects_by_state_hold_for_every_row_of_that_state():
    policy = apply_overrides(DEFAULT_TABLE, (), {HealthState.UNHEALTHY: Effect.NO_EXECUTE})

    effects = {(row.state, row.effect) for row in policy.table.values() if row.name not in SPARING}
    assert effects == {
        (HealthState.HEALTHY, Effect.NONE),
        (HealthState.DEGRADED, Effect.NO_SCHEDULE),
        (HealthState.UNHEALTHY, Effect.NO_EXECUTE),
        (HealthState.GONE, Effect.NO_SCHEDULE),
    }


@pytest.mark.parametrize("signal", SPARING)
def test_eviction_by_state_reaches_no_row_that_says_nothing_of_the_pods_that_run(signal):
    """Two slow GPUs would have deleted every GPU pod of their node."""
    row = apply_overrides(DEFAULT_TABLE, (), {HealthState.UNHEALTHY: Effect.NO_EXECUTE}).find(signal)

    assert row is not None
    assert row.effect is Effect.NO_SCHEDULE


@pytest.mark.parametrize("signal", SPARING)
def test_such_a_row_evicts_where_its_own_entry_says_so(signal):
    overrides = [Override(signal=signal, effect=Effect.NO_EXECUTE)]

    row = apply_overrides(DEFAULT_TABLE, overrides, {HealthState.UNHEALTHY: Effect.NO_EXECUTE}).find(signal)

    assert row is not None
    assert row.effect is Effect.NO_EXECUTE


def test_a_row_made_unhealthy_gets_the_effect_of_that_state():
    overrides = [Override(signal="xid-94", state=HealthState.UNHEALTHY)]

    row = apply_overrides(DEFAULT_TABLE, overrides, {HealthState.UNHEALTHY: Effect.NO_EXECUTE}).find("xid-94")

    assert row is not None
    assert row.effect is Effect.NO_EXECUTE


def test_the_effect_of_a_row_goes_before_that_of_its_state():
    overrides = [Override(signal="xid-48", effect=Effect.NO_SCHEDULE)]

    row = apply_overrides(DEFAULT_TABLE, overrides, {HealthState.UNHEALTHY: Effect.NO_EXECUTE}).find("xid-48")

    assert row is not None
    assert row.effect is Effect.NO_SCHEDULE
