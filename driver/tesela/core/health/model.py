"""The nouns of health: a state, a signal, a finding, and all findings of a node. Fields and tiny properties only.

A *signal* is a row of the table (`signals.py`): what may be seen on a GPU, what it means, and what takes it back. A
*finding* is a signal that was seen, on one GPU or on one placement of it, and that stands until its evidence of
recovery. Findings are what lies on disk; the state of a GPU is the worst of its findings, never a memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from tesela.core.geometry import overlap
from tesela.core.model import Placement

TAINT_PREFIX: Final = "gpu.nvidia.com/"

Place: TypeAlias = tuple[str, Placement | None]
"""A GPU's UUID, and a placement of it or None for all of it."""
Rank: TypeAlias = tuple[str, tuple[int, int], str]
"""What findings are sorted by, and known by: GPU UUID, placement (whole GPU first), signal."""


class HealthState(StrEnum):
    """How a GPU or a partition is. Worse ones come later."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    GONE = "gone"

    @property
    def severity(self) -> int:
        """0 for healthy, higher for worse."""
        return list(HealthState).index(self)


class Evidence(StrEnum):
    """What takes a finding back. `tesela health clear` takes back any.

    READING: the reading that raised it is clear again. RESET: the GPU was reset, its driver reloaded or the node booted
    since. BOOT: the node booted since. PERSON: nothing but `tesela health clear`, as for a board that wants replacing.
    """

    READING = "reading"
    RESET = "reset"
    BOOT = "boot"
    PERSON = "person"


class Counted(StrEnum):
    """What a signal's threshold is held against.

    EVENTS: how often it was seen since its finding began. VOLATILE: a counter since the driver was loaded or the GPU
    was reset. AGGREGATE: a counter of the board's life. STATE: a condition that is so, or is not.
    """

    EVENTS = "events"
    VOLATILE = "volatile"
    AGGREGATE = "aggregate"
    STATE = "state"


class Reach(StrEnum):
    """Which devices of a GPU a finding concerns: all, the whole GPU alone, or the partitions alone."""

    ALL = "all"
    WHOLE = "whole"
    PARTITIONS = "partitions"

    def covers(self, placement: Placement | None) -> bool:
        """Whether a device at `placement` (None: the whole GPU) is of that kind."""
        return self is Reach.ALL or (self is Reach.WHOLE) == (placement is None)


class Effect(StrEnum):
    """What a taint does (resource.k8s.io/v1 DeviceTaintEffect). NO_EXECUTE deletes pods without regard to budgets."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One row of the table.

    `name` is unique and what an operator writes (`xid-48`, `ecc-uncorrected-volatile`). `key` is the taint's, without
    prefix, `value` its value where the finding has none of its own. `meaning` says what it is and `remedy` what to do.
    `threshold` is the least reading, or the least number of events, that counts; `counted` says of what. HEALTHY as
    `state` means that the signal is counted and shown, and condemns nothing. `source` says where the rule comes from.
    """

    name: str
    key: str
    value: str
    meaning: str
    remedy: str
    state: HealthState
    evidence: Evidence
    source: str
    counted: Counted
    threshold: int = 1
    effect: Effect = Effect.NO_SCHEDULE
    reach: Reach = Reach.ALL


def rank(gpu_uuid: str, placement: Placement | None, signal: str) -> Rank:
    """The rank of a finding of `signal` there."""
    return (gpu_uuid, (-1, 0) if placement is None else (placement.start, placement.size), signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A signal seen on `gpu_uuid`, on all of it or on `placement` alone.

    `reason` is the taint's value: at most 63 label characters. `message` is the sentence for people. `since_s` and
    `last_s` are Unix seconds of the first and the last time it was seen, `count` how often, or what a counter read at
    most. `state` is HEALTHY while a signal is only counted. `boot_id`, `epoch` and `generation` are the node's boot,
    the roster's epoch and the GPU's generation when it was first seen; the first two tell of a recovery. "" and 0 where
    the roster did not know the GPU yet.
    """

    signal: str
    gpu_uuid: str
    placement: Placement | None
    state: HealthState
    key: str
    effect: Effect
    evidence: Evidence
    reason: str
    message: str
    since_s: int
    last_s: int
    count: int
    boot_id: str
    epoch: str
    generation: int
    reach: Reach = Reach.ALL

    @property
    def place(self) -> Place:
        """What it lies on."""
        return (self.gpu_uuid, self.placement)

    @property
    def rank(self) -> Rank:
        """What it is known by: no two findings of a node share one."""
        return rank(self.gpu_uuid, self.placement, self.signal)

    @property
    def taint_key(self) -> str:
        """The whole key of its taint."""
        return TAINT_PREFIX + self.key

    def concerns(self, gpu_uuid: str, placement: Placement | None) -> bool:
        """Whether a device at `placement` of that GPU (None: the whole GPU) suffers from it.

        A fault of the parent reaches its partitions; one of a partition reaches what overlaps it, the whole GPU too;
        both only the devices that its `reach` allows.
        """
        if gpu_uuid != self.gpu_uuid or not self.reach.covers(placement):
            return False
        return self.placement is None or placement is None or overlap(self.placement, placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """A person took a finding back (`tesela health clear`): why, who and when (Unix seconds).

    `count` is what a counter had read: it counts again only above that, because counters do not fall when a person is
    content. It is kept until the signal is found there again, or a reset sets the counter back.
    """

    signal: str
    gpu_uuid: str
    placement: Placement | None
    count: int
    reason: str
    who: str
    at_s: int

    @property
    def rank(self) -> Rank:
        """As `Finding.rank`: that of the finding taken back."""
        return rank(self.gpu_uuid, self.placement, self.signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """All findings of a node, and what persons took back, each in a fixed order: by `rank`."""

    findings: tuple[Finding, ...] = ()
    clearances: tuple[Clearance, ...] = ()

    def find(self, gpu_uuid: str, placement: Placement | None) -> tuple[Finding, ...]:
        """The findings that concern a device, the worst first, then the oldest."""
        return _worst_first(one for one in self.findings if one.concerns(gpu_uuid, placement))

    def find_all(self, gpu_uuid: str) -> tuple[Finding, ...]:
        """The findings of a GPU and of all its partitions, in the same order."""
        return _worst_first(one for one in self.findings if one.gpu_uuid == gpu_uuid)

    def state_of(self, gpu_uuid: str, placement: Placement | None) -> HealthState:
        """The worst state of a device; healthy without findings."""
        found = self.find(gpu_uuid, placement)
        return found[0].state if found else HealthState.HEALTHY


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda one: (-one.state.severity, one.since_s, one.rank)))


ALL_HEALTHY: Final = NodeHealth()


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """One change of one GPU or partition, for those who tell others: events, logs, metrics.

    `added` and `removed` are the findings that came and went together; one that got worse or better is in both, as it
    was and as it is. Signals that are only counted are in neither. `before` and `after` are the worst states of what
    lies on the device itself and, for a partition, on its GPU. `cause` says why findings went where a person took them
    back; "" otherwise.
    """

    gpu_uuid: str
    placement: Placement | None
    before: HealthState
    after: HealthState
    added: tuple[Finding, ...] = ()
    removed: tuple[Finding, ...] = ()
    cause: str = ""
