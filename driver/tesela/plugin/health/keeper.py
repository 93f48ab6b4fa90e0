"""Keeps the health of this node's GPUs: what was observed goes through the rules, onto disk, and to those who tell.

One way for everybody who observes. The file is the truth: another driver process may overlap with this one, and
`tesela health clear` works on it, so it is read again before it is written, under its lock. A change of a finding is on
disk before anybody hears of it; how often a finding was seen is written at most every ten seconds. A disk that is full
keeps no fault from being fenced: it counts in memory until it can be written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tesela.core.errors import OtherRelease, StateError, TryAgain
from tesela.core.health.model import ALL_HEALTHY, HealthChange, NodeHealth
from tesela.core.health.observations import Observation, Wedged
from tesela.core.health.rules import differ_in_counts_only, plan_changes, plan_fences, plan_health
from tesela.core.health.signals import HealthPolicy
from tesela.core.roster import Roster
from tesela.core.slices.state import Fence
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLock, hold
from tesela.plugin.announce import UNHEARD, Announces
from tesela.plugin.loop import Loop, LoopPart

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""How soon a change of the file by somebody else is noticed."""
COUNTS_S: Final = 10.0
_LOCK_S: Final = 5.0
_MOST_POSTED: Final = 10_000
_MOST_OWED: Final = 1_000


class HealthKeeper(LoopPart):
    """`observe` and `post` take observations, `listen` tells of changes, `health` is what stands.

    `roster` is asked for the boots, generations and presence of the GPUs, `wedged` for the calls that hang: each time,
    so that what stands is true of one moment. `lock` makes the lock of the file; `announcer` hears of one that was
    damaged.
    """

    def __init__(
        self,
        *,
        store: HealthStore,
        lock: Callable[[], FileLock],
        policy: HealthPolicy,
        roster: Callable[[], Roster],
        wedged: Callable[[], Wedged] = Wedged,
        announcer: Announces = UNHEARD,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._lock = lock
        self._policy = policy
        self._roster = roster
        self._wedged = wedged
        self._announcer = announcer
        self._clock = clock
        self._guard = threading.Lock()
        self._health = self._on_disk = self._recall()
        self._hung: frozenset[str] = frozenset()
        self._counts_due_s = 0.0
        self._owed: deque[Observation] = deque(maxlen=_MOST_OWED)
        self._posted: deque[Observation] = deque(maxlen=_MOST_POSTED)
        self._listeners: list[Callable[[tuple[HealthChange, ...]], None]] = []
        self._last_problem = ""
        self._has_read = False
        self._loop = Loop("health", self._turn)

    @property
    def health(self) -> NodeHealth:
        """All findings that stand."""
        return self._health

    def fences(self) -> tuple[Fence, ...]:
        """The taints that follow, for the publisher."""
        return plan_fences(self._health, self._roster())

    def listen(self, callback: Callable[[tuple[HealthChange, ...]], None]) -> None:
        """Call `callback` after each change of a finding, once that is on disk; it must not block."""
        self._listeners.append(callback)

    def _recall(self) -> NodeHealth:
        """What stood when the process before this one ended, so that the first look can take it back by its evidence.

        A file that is damaged is for the first observation to set aside.
        """
        try:
            return self._store.read_health()
        except (StateError, TryAgain):
            return ALL_HEALTHY

    def stop(self, timeout_s: float) -> bool:
        """End; what was posted and counted until now is written."""
        ended = super().stop(timeout_s)
        if ended:
            self._counts_due_s = 0.0
            self._turn()
        return ended

    def post(self, *observations: Observation) -> None:
        """Observations for soon. Never blocks, and costs nothing; from any thread."""
        if observations:
            self._posted.extend(observations)
            self._loop.wake()

    def wake(self) -> None:
        """Ask again what hangs, and look at the file, soon. Never blocks; from any thread."""
        self._loop.wake()

    def observe(self, *observations: Observation, since: NodeHealth | None = None) -> tuple[HealthChange, ...]:
        """Observations that count at once: what changed is on disk when this returns, or the log says why not.

        `since` is what stood when they began; nothing that was found meanwhile is taken back by them. Without
        observations it looks at the file and at the roster.
        """
        with self._guard:
            changes = self._observe(observations, since)
        if changes:
            for listener in self._listeners:
                listener(changes)
        return changes

    def _turn(self) -> float:
        posted: list[Observation] = []
        while self._posted:
            posted.append(self._posted.popleft())
        self.observe(*posted)
        return LOOK_S

    def _observe(self, observations: tuple[Observation, ...], since: NodeHealth | None) -> tuple[HealthChange, ...]:
        before = self._health
        told = (self._look_for_hangs(), *observations)
        planned = self._plan(before, told, since)
        if self._is_settled(planned):
            self._health = planned
            return ()
        try:
            with hold(self._lock(), _LOCK_S, "the health of the GPUs"):
                self._settle(told, planned, since)
        except (TryAgain, StateError) as error:
            self._health = planned
            if not differ_in_counts_only(before, planned):
                self._owed.extend(observations)
            self._say(f"the health of the GPUs is kept in memory only: {error}")
        return plan_changes(before, self._health)

    def _is_settled(self, planned: NodeHealth) -> bool:
        """Whether the file needs neither reading nor writing now."""
        try:
            on_disk = self._store.read_health()
        except (TryAgain, StateError):
            return False
        if on_disk != self._on_disk or not differ_in_counts_only(planned, on_disk):
            return False
        wait_s = self._counts_due_s - self._clock()  # longer than ever asked for where the clock was set back
        return planned == on_disk or 0 < wait_s <= COUNTS_S

    def _settle(self, observations: tuple[Observation, ...], planned: NodeHealth, since: NodeHealth | None) -> None:
        """Put `planned` on disk, or, where somebody else wrote meanwhile, what follows from that."""
        on_disk = self._read()
        found = self._store.read_copy() if on_disk is None else on_disk
        if found is not None and found != self._on_disk:
            planned = self._plan(found, (*self._owed, *observations), since)
        if planned != on_disk:
            self._store.write_health(planned)
        self._health = self._on_disk = planned
        self._counts_due_s = self._clock() + COUNTS_S
        self._owed.clear()
        self._say("")

    def _read(self) -> NodeHealth | None:
        """What is on disk; None where that was damaged, is set aside, and what is known is to replace it.

        That is the copy of the file, which another process may have written, else what this process knows.

        OtherRelease while this process runs: another one, of a newer release, has begun. Two that set each other's file
        aside would not end.
        """
        try:
            on_disk = self._store.read_health()
        except OtherRelease:
            if self._has_read:
                raise
            self._set_aside("the health kept by another release")
            return None
        except StateError as error:
            self._set_aside(f"{error}; it")
            return None
        finally:
            self._has_read = True
        return on_disk

    def _set_aside(self, subject: str) -> None:
        sentence = f"{subject} was set aside as {self._store.set_aside()}; what is known otherwise holds"
        self._announcer.announce_set_aside(sentence)
        log.error("%s", sentence)

    def _plan(self, health: NodeHealth, observations: tuple[Observation, ...], since: NodeHealth | None) -> NodeHealth:
        now_s = int(self._clock())
        return plan_health(health, self._policy, observations, roster=self._roster(), now_s=now_s, since=since)[0]

    def _look_for_hangs(self) -> Wedged:
        """What hangs, and what this process called hanging and is no more: another one's hangs are not its to end."""
        now, before = self._wedged(), self._hung
        self._hung = now.gpu_uuids.union(known.gpu.uuid for known in self._roster().gpus if now.whole_node)
        return replace(now, ended=before - self._hung)

    def _say(self, problem: str) -> None:
        if problem and problem != self._last_problem:
            log.error("%s; it is tried again", problem)
        self._last_problem = problem
