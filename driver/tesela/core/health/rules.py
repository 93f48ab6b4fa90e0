"""What observations do to the health of a node, and what follows for its devices. Pure and total.

Findings only add up: the state of a device is the worst of those that concern it, so a harmless event improves nothing.
A finding goes on its evidence alone (`Evidence`), and what proves a recovery proves it for what stood before: whatever
the same batch raises stands after it. So the order of observations that have nothing to do with each other is the same
to the result, and telling the same reading twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tesela.core.errors import StateError
from tesela.core.health.model import (
    Clearance,
    Counted,
    Effect,
    Evidence,
    Finding,
    HealthChange,
    HealthState,
    NodeHealth,
    Place,
    Rank,
    Signal,
    rank,
)
from tesela.core.health.observations import Observation
from tesela.core.health.signals import GONE, WEDGED, HealthPolicy
from tesela.core.health.told import Level, Told, plan_told
from tesela.core.model import Placement
from tesela.core.roster import KnownGpu, Roster
from tesela.core.slices.state import Fence, render_label_value
from tesela.core.text import cut_text

_BY_READING: Final = frozenset({Evidence.READING, Evidence.RESET})
"""A reset clears what it takes back, so a condition that is read as clear proves it as well."""
_COUNTERS: Final = frozenset({Counted.VOLATILE, Counted.AGGREGATE})


def plan_health(
    health: NodeHealth,
    policy: HealthPolicy,
    observations: Iterable[Observation],
    *,
    roster: Roster,
    now_s: int,
    since: NodeHealth | None = None,
) -> tuple[NodeHealth, tuple[HealthChange, ...]]:
    """The health after `observations`, and what changed for the worse or the better.

    The roster tells boot, module load, generation and presence of each GPU, and is asked each time: call this with no
    observation after a look at the machine. Findings that stand are read by today's policy. Those of a GPU that a
    roster of others does not know were forgotten with it. `now_s` is Unix time; a clock set back moves nothing back.
    `since` is what stood when the observations began, None where that is `health`: a look that took its time
    takes back nothing that was found meanwhile.
    """
    witnessed = _list_witnessed(health, since)
    told = plan_told(observations, witnessed.values(), roster)
    standing: dict[Rank, Finding] = {}
    for finding in health.findings:
        kept = _keep(finding, witnessed.get(finding.rank), policy, told, roster)
        if kept is not None:
            standing[kept.rank] = kept
    clearances = {one.rank: one for one in health.clearances if _holds(one, policy, told, roster)}
    _raise_events(standing, policy, told, roster, now_s)
    _raise_levels(standing, clearances, policy, told, roster, now_s)
    after = NodeHealth(
        findings=tuple(sorted(standing.values(), key=lambda one: one.rank)),
        clearances=tuple(
            sorted((one for one in clearances.values() if one.rank not in standing), key=lambda one: one.rank)
        ),
    )
    return after, plan_changes(health, after)


def plan_clear(
    health: NodeHealth, gpu_uuid: str, signal: str | None, *, reason: str, who: str, now_s: int
) -> NodeHealth:
    """The health without the findings of one GPU and its partitions, or without those of one signal there.

    What is a condition, and still so, is found again by the next reading; a counter only once it counts further.
    StateError where there is nothing to take back.
    """
    here = tuple(one for one in health.findings if one.gpu_uuid == gpu_uuid)
    taken = tuple(one for one in here if signal is None or one.signal == signal)
    if not taken:
        what = f"no finding {signal} stands on" if signal else "no finding stands on"
        listed = ", ".join(sorted({one.signal for one in here}))
        raise StateError(f"{what} {gpu_uuid}" + (f"; these do: {listed}" if listed else ""))
    cleared = {
        one.rank: Clearance(
            signal=one.signal,
            gpu_uuid=one.gpu_uuid,
            placement=one.placement,
            count=one.count,
            reason=reason,
            who=who,
            at_s=now_s,
        )
        for one in taken
    }
    clearances = {**{one.rank: one for one in health.clearances}, **cleared}
    return NodeHealth(
        findings=tuple(one for one in health.findings if one.rank not in cleared),
        clearances=tuple(sorted(clearances.values(), key=lambda one: one.rank)),
    )


def plan_changes(before: NodeHealth, after: NodeHealth) -> tuple[HealthChange, ...]:
    """How two states of one node differ, one entry per GPU or partition; counts, and what is only counted, left out."""
    old, new = _list_condemning(before), _list_condemning(after)
    added = [one for key, one in new.items() if key not in old]
    removed = [one for key, one in old.items() if key not in new]
    places = sorted({one.place for one in (*added, *removed)}, key=lambda place: rank(place[0], place[1], ""))
    return tuple(
        HealthChange(
            gpu_uuid=place[0],
            placement=place[1],
            before=_worst(before, place),
            after=_worst(after, place),
            added=tuple(one for one in added if one.place == place),
            removed=tuple(one for one in removed if one.place == place),
            cause=_explain_clearance(before, after, [one for one in removed if one.place == place]),
        )
        for place in places
    )


def differ_in_counts_only(before: NodeHealth, after: NodeHealth) -> bool:
    """Whether nothing but counts and times of last sight tell the two apart: nothing to publish, no hurry to write."""
    return _without_counts(before) == _without_counts(after)


def plan_fences(health: NodeHealth, roster: Roster) -> tuple[Fence, ...]:
    """A fence per finding that condemns and has an effect, the worst first: of equal keys on a device, it shows."""
    worst_first = sorted(health.findings, key=lambda one: (one.gpu_uuid, -one.state.severity, one.since_s, one.rank))
    return tuple(
        Fence(
            gpu_uuid=one.gpu_uuid,
            placement=one.placement,
            key=one.taint_key,
            value=one.reason,
            effect=one.effect.value,
            shape=one.reach,
        )
        for one in worst_first
        if one.state is not HealthState.HEALTHY and one.effect is not Effect.NONE and roster.find(one.gpu_uuid)
    )


def render_attribute(health: NodeHealth, known: KnownGpu, placement: Placement | None) -> str:
    """The attribute `health` of a device: `healthy`, `degraded`, `unhealthy` or `gone`."""
    state = HealthState.HEALTHY if known.present else HealthState.GONE
    return max(state, health.state_of(known.gpu.uuid, placement), key=lambda one: one.severity).value


MESSAGE_BYTES: Final = 1024
"""What the kubelet keeps of a device's message (k8s.io/kubelet dra-health)."""


def describe(health: NodeHealth, gpu_uuid: str, placement: Placement | None) -> str:
    """What ails a device, the worst first, in at most 1024 bytes; "" for a healthy one. Counts are left out."""
    ailments = [one for one in health.find(gpu_uuid, placement) if one.state is not HealthState.HEALTHY]
    text = "; ".join(f"{one.state}, {one.message} ({_UNTIL[one.evidence]})" for one in ailments)
    return cut_text(text, MESSAGE_BYTES)


_UNTIL: Final = {
    Evidence.READING: "until it reads clear",
    Evidence.RESET: "until the GPU is reset",
    Evidence.BOOT: "until the node is rebooted",
    Evidence.PERSON: "until tesela health clear",
}


_OF_NOW: Final = frozenset({GONE, WEDGED})
"""What the roster and the watchdog tell is of the moment of the decision, however long the look took."""


def _list_witnessed(health: NodeHealth, since: NodeHealth | None) -> dict[Rank, Finding]:
    """What stood before the observations began, with what it counted then: they may speak about that alone."""
    if since is None or since is health:
        return {one.rank: one for one in health.findings}
    before = {(one.rank, one.since_s): one.count for one in since.findings}
    return {
        one.rank: replace(one, count=min(one.count, before.get((one.rank, one.since_s), one.count)))
        for one in health.findings
        if (one.rank, one.since_s) in before or one.signal in _OF_NOW
    }


def _keep(
    finding: Finding, witnessed: Finding | None, policy: HealthPolicy, told: Told, roster: Roster
) -> Finding | None:
    """The finding as it stands after what was told, None where it goes. `witnessed`: see `_list_witnessed`."""
    if roster.gpus and roster.find(finding.gpu_uuid) is None:
        return None
    row = policy.find(finding.signal)
    if row is None:  # a later release's: it knows what takes it back
        return _adopt(finding, roster)
    if row.counted is not Counted.EVENTS and finding.count < row.threshold:
        return None  # today's policy counts from further up
    if _has_another_life(finding, row, roster) or (witnessed is not None and _is_taken_back(witnessed, row, told)):
        return None
    return _adopt(_judge(finding, row), roster)


def _has_another_life(finding: Finding, row: Signal, roster: Roster) -> bool:
    """Whether the roster proves what takes it back: a boot, or a load of the driver.

    A generation that rose proves nothing by itself: it rises, too, where somebody destroyed a GPU's partitions by hand.
    """
    boot_id, epoch, _ = _read_life(roster, finding.gpu_uuid)
    if row.evidence in {Evidence.RESET, Evidence.BOOT} and _differ(finding.boot_id, boot_id):
        return True
    return row.evidence is Evidence.RESET and _differ(finding.epoch, epoch)


def _is_taken_back(finding: Finding, row: Signal, told: Told) -> bool:
    """Whether what was observed proves it."""
    if row.evidence is Evidence.RESET and finding.gpu_uuid in told.resets:
        return True
    level = told.levels.get((finding.gpu_uuid, finding.signal))
    if level is None or row.evidence not in _BY_READING:
        return False
    return level.value < (finding.count if row.counted is Counted.VOLATILE else row.threshold)


def _read_life(roster: Roster, gpu_uuid: str) -> tuple[str, str, int]:
    """Boot, module load and generation that a finding of now belongs to; empty where the GPU is not known.

    A GPU whose entry does not take account of the last boot or load yet will have its generation raised for that.
    """
    known = roster.find(gpu_uuid)
    if known is None:
        return ("", "", 0)
    behind = roster.epoch_of(known) != roster.epoch
    return (roster.boot_id, roster.epoch, known.generation + int(behind))


def _differ(one: str, other: str) -> bool:
    """Whether two marks of a life are known and differ."""
    return bool(one) and bool(other) and one != other


def _adopt(finding: Finding, roster: Roster) -> Finding:
    """A finding from before the roster knew its GPU belongs to the first life that it tells."""
    if finding.boot_id or finding.epoch or finding.generation:
        return finding
    boot_id, epoch, generation = _read_life(roster, finding.gpu_uuid)
    return replace(finding, boot_id=boot_id, epoch=epoch, generation=generation)


def _judge(finding: Finding, row: Signal) -> Finding:
    """The finding with what the row says of it; only counted, and so healthy, below the threshold."""
    state = row.state if finding.count >= row.threshold else HealthState.HEALTHY
    return replace(finding, state=state, key=row.key, effect=row.effect, evidence=row.evidence)


def _raise_events(standing: dict[Rank, Finding], policy: HealthPolicy, told: Told, roster: Roster, now_s: int) -> None:
    for (gpu_uuid, placement, signal), count in told.events.items():
        row = policy.find(signal)
        if row is None or count < 1:
            continue
        old = standing.get(rank(gpu_uuid, placement, signal))
        finding = old or _begin(row, signal, (gpu_uuid, placement), Level(value=0), roster, now_s)
        finding = replace(finding, count=finding.count + count, last_s=max(finding.last_s, now_s))
        standing[finding.rank] = _judge(finding, row)


def _raise_levels(
    standing: dict[Rank, Finding],
    clearances: dict[Rank, Clearance],
    policy: HealthPolicy,
    told: Told,
    roster: Roster,
    now_s: int,
) -> None:
    for (gpu_uuid, signal), level in told.levels.items():
        row = policy.find(signal)
        if row is None or level.value < row.threshold:
            continue
        key = rank(gpu_uuid, None, signal)
        cleared = clearances.get(key)
        if cleared is not None and row.counted in _COUNTERS and level.value <= cleared.count:
            continue
        fresh = _begin(row, signal, (gpu_uuid, None), level, roster, now_s)
        old = standing.get(key)
        if old is None:
            standing[key] = fresh
        elif level.value > old.count:
            standing[key] = _judge(replace(old, count=level.value, last_s=max(old.last_s, now_s)), row)
        elif row.counted is Counted.STATE:
            standing[key] = replace(old, reason=fresh.reason, message=fresh.message, reach=fresh.reach)


def _begin(row: Signal, signal: str, place: Place, level: Level, roster: Roster, now_s: int) -> Finding:
    gpu_uuid, placement = place
    boot_id, epoch, generation = _read_life(roster, gpu_uuid)
    meaning = level.meaning or row.meaning
    if row.key == "xid":
        meaning = f"Xid {row.value}, {meaning}"
    finding = Finding(
        signal=signal,
        gpu_uuid=gpu_uuid,
        placement=placement,
        state=row.state,
        key=row.key,
        effect=row.effect,
        evidence=row.evidence,
        reason=render_label_value(level.detail or row.value),
        message=f"{meaning}: {row.remedy}",
        since_s=now_s,
        last_s=now_s,
        count=level.value,
        boot_id=boot_id,
        epoch=epoch,
        generation=generation,
        reach=level.reach or row.reach,
    )
    return _judge(finding, row)


def _holds(cleared: Clearance, policy: HealthPolicy, told: Told, roster: Roster) -> bool:
    """Whether a clearance still stands: not where its GPU was forgotten, or its counter was set back."""
    if roster.gpus and roster.find(cleared.gpu_uuid) is None:
        return False
    row = policy.find(cleared.signal)
    level = told.levels.get((cleared.gpu_uuid, cleared.signal))
    return row is None or row.counted not in _COUNTERS or level is None or level.value >= cleared.count


def _list_condemning(health: NodeHealth) -> dict[tuple[Rank, HealthState, int], Finding]:
    return {(one.rank, one.state, one.since_s): one for one in health.findings if one.state is not HealthState.HEALTHY}


def _worst(health: NodeHealth, place: Place) -> HealthState:
    gpu_uuid, placement = place
    states = [one.state for one in health.findings if one.place in {(gpu_uuid, placement), (gpu_uuid, None)}]
    return max(states, key=lambda one: one.severity, default=HealthState.HEALTHY)


def _explain_clearance(before: NodeHealth, after: NodeHealth, removed: list[Finding]) -> str:
    fresh = {one.rank: one for one in after.clearances if one not in before.clearances}
    told = (fresh[one.rank] for one in removed if one.rank in fresh)
    return "; ".join(dict.fromkeys(f"cleared by {one.who}: {one.reason}" for one in told))


def _without_counts(health: NodeHealth) -> NodeHealth:
    return replace(health, findings=tuple(replace(one, count=0, last_s=0) for one in health.findings))
