"""What a batch of observations says, in the words of the table: events to count, and levels that are known now.

A level is the value of a signal that is not an event: a counter's reading, or 1 and 0 for a condition that is so or is
not. What is not known has no level, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tesela.core.health import signals
from tesela.core.health.model import Finding, Reach
from tesela.core.health.observations import (
    DaemonLeft,
    GpuAnswers,
    GpuLost,
    ModeFree,
    ModeHeld,
    NodeMissing,
    NodePresent,
    Observation,
    Reading,
    ResetSeen,
    StormSeen,
    Wedged,
    XidSeen,
)
from tesela.core.model import Placement
from tesela.core.roster import Roster

_VOLATILE = frozenset({signals.ECC_UNCORRECTED_VOLATILE, signals.ECC_CORRECTED_VOLATILE})
_FABRIC_NOT_READY = {1: "not-started", 2: "in-progress"}
_FABRIC_COMPLETED = 3
"""nvmlGpuFabricState_t: 0 is not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The level of a signal on one GPU. `detail` and `meaning` replace the row's `value` and `meaning` where not ""."""

    value: int
    detail: str = ""
    meaning: str = ""
    reach: Reach | None = None


CLEAR = Level(value=0)
SO = Level(value=1)


@dataclass(slots=True)
class Told:
    """One batch. `events` are by GPU, placement and signal; `levels` by GPU and signal; `resets` are GPU UUIDs."""

    events: dict[tuple[str, Placement | None, str], int] = field(default_factory=dict)
    levels: dict[tuple[str, str], Level] = field(default_factory=dict)
    resets: set[str] = field(default_factory=set)


def plan_told(observations: Iterable[Observation], standing: Iterable[Finding], roster: Roster) -> Told:
    """What the observations and the roster say; `standing` are the findings that stood before."""
    told = Told()
    findings = tuple(standing)
    for known in roster.gpus:
        told.levels[known.gpu.uuid, signals.GONE] = CLEAR if known.present else SO
    for observation in observations:
        _tell(told, observation, findings, roster)
    _tell_resets(told, findings)
    if roster.gpus:
        _leave_out_strangers(told, roster)
    return told


def _leave_out_strangers(told: Told, roster: Roster) -> None:
    """A GPU that never told its UUID, or never answered a look, has no device, and nothing could stand against it."""
    known = {one.gpu.uuid for one in roster.gpus}
    told.events = {key: count for key, count in told.events.items() if key[0] in known}
    told.levels = {key: level for key, level in told.levels.items() if key[0] in known}


def _tell(told: Told, seen: Observation, standing: tuple[Finding, ...], roster: Roster) -> None:
    match seen:
        case XidSeen():
            _count(told, seen.gpu_uuid, seen.placement, signals.name_xid(seen.xid), seen.count)
        case StormSeen():
            _count(told, seen.gpu_uuid, None, signals.ECC_CORRECTED_STORM, seen.count)
        case DaemonLeft():
            _count(told, seen.gpu_uuid, None, signals.MPS_LEFT, 1)
        case Reading():
            _tell_reading(told, seen)
        case ResetSeen():
            told.resets.add(seen.gpu_uuid)
        case Wedged():
            everyone = {one.gpu_uuid for one in standing} | {known.gpu.uuid for known in roster.gpus}
            hanging = seen.gpu_uuids | (everyone if seen.whole_node else frozenset())
            told.levels.update({(uuid, signals.WEDGED): CLEAR for uuid in seen.ended - hanging})
            told.levels.update({(uuid, signals.WEDGED): SO for uuid in hanging})
        case GpuAnswers():
            told.levels[seen.gpu_uuid, signals.GPU_LOST] = CLEAR
            told.levels.setdefault((seen.gpu_uuid, signals.WEDGED), CLEAR)
        case _:
            signal, level = _weigh(seen)
            told.levels[seen.gpu_uuid, signal] = level


def _weigh(seen: GpuLost | NodeMissing | NodePresent | ModeHeld | ModeFree) -> tuple[str, Level]:
    """The signal and level of a condition that one observation tells whole."""
    match seen:
        case GpuLost():
            return signals.GPU_LOST, SO
        case NodeMissing():
            meaning = f"the device node {seen.path} is missing"
            return signals.DEVICE_NODE, Level(value=1, detail=f"{seen.path}-missing", meaning=meaning)
        case NodePresent():
            return signals.DEVICE_NODE, CLEAR
        case ModeHeld():
            return signals.MODE_HELD, _hold(seen)
        case ModeFree():
            return signals.MODE_HELD, CLEAR


def _count(told: Told, gpu_uuid: str, placement: Placement | None, signal: str, count: int) -> None:
    key = (gpu_uuid, placement, signal)
    told.events[key] = told.events.get(key, 0) + count


def _hold(seen: ModeHeld) -> Level:
    mode, which = ("on", Reach.PARTITIONS) if seen.wants_mig else ("off", Reach.WHOLE)
    return Level(
        value=1,
        detail=f"mig-{mode}-held-by-{seen.holder}",
        meaning=f"MIG mode cannot be turned {mode}, held by {seen.holder}",
        reach=which,
    )


def _tell_reading(told: Told, seen: Reading) -> None:
    levels = {
        signals.ECC_UNCORRECTED_VOLATILE: seen.ecc_uncorrected_volatile,
        signals.ECC_UNCORRECTED_AGGREGATE: seen.ecc_uncorrected_aggregate,
        signals.ECC_CORRECTED_VOLATILE: seen.ecc_corrected_volatile,
        signals.REMAP_PENDING: seen.remap_pending,
        signals.REMAP_FAILURE: seen.remap_failure,
    }
    for signal, value in levels.items():
        if value is not None:
            told.levels[seen.gpu_uuid, signal] = Level(value=int(value))
    if seen.recovery_action is not None:
        for signal in signals.RECOVERY_ACTIONS:
            told.levels[seen.gpu_uuid, signal] = CLEAR
        if seen.recovery_action != 0:
            signal = signals.name_recovery_action(seen.recovery_action)
            told.levels[seen.gpu_uuid, signal] = _act(signal, seen.recovery_action)
    if seen.fabric_state is not None:
        told.levels[seen.gpu_uuid, signals.FABRIC] = _weigh_fabric(seen.fabric_state, seen.fabric_status)


def _weigh_fabric(state: int, status: int) -> Level:
    if state == _FABRIC_COMPLETED and status:
        meaning = f"the GPU could not join the NVLink fabric (NVML error {status})"
        return Level(value=1, detail=f"failed-{status}", meaning=meaning)
    detail = _FABRIC_NOT_READY.get(state, "")
    return Level(value=1, detail=detail) if detail else CLEAR


def _act(signal: str, action: int) -> Level:
    return Level(value=1, detail=f"action-{action}") if signal == signals.name_recovery_action(0) else SO


def _tell_resets(told: Told, standing: tuple[Finding, ...]) -> None:
    """What proves a reset: a recovery action that wanted one is gone, a lost GPU answers again, a volatile count fell.

    Whoever sets counters back by hand says with it that the errors are done with.
    """
    proofs = {signals.name_recovery_action(action) for action in signals.RESET_ACTIONS}
    for finding in standing:
        level = told.levels.get((finding.gpu_uuid, finding.signal))
        if level is None:
            continue
        if finding.signal in _VOLATILE and level.value < finding.count:
            told.resets.add(finding.gpu_uuid)
        if level.value:
            continue
        if finding.signal == signals.GPU_LOST:
            told.resets.add(finding.gpu_uuid)
        if finding.signal in proofs and _has_no_action(told, finding.gpu_uuid):
            told.resets.add(finding.gpu_uuid)


def _has_no_action(told: Told, gpu_uuid: str) -> bool:
    return not any(told.levels[gpu_uuid, signal].value for signal in signals.RECOVERY_ACTIONS)
