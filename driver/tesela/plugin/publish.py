"""The publisher: keeps the ResourceSlices of this node equal to what they should be.

Whatever happens (start, a claim, a taint, a slice deleted by the kubelet or by hand, the kubelet's registration, a
timer) only wakes it; every round renders the whole pool and compares it with the API, so no cause can be forgotten and
none needs its own path. What a pool looks like is decided in core; how fields are written is `slice_writer`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from tesela.core.errors import ApiError, ApiGone, ApiNotFound, ApiUnavailable, TeselaError
from tesela.core.model import DRIVER_NAME
from tesela.core.publication import CreateSlice, NodeRef, is_complete, plan_publication
from tesela.core.slices.pool import Pool, render_pool
from tesela.core.slices.state import ApiAbilities, Json, PoolState, is_split_version
from tesela.edge.kube.port import NODES, RESOURCE_SLICES, Kube, WatchEvent
from tesela.edge.telemetry.port import SILENT, Telemetry
from tesela.plugin.loop import plan_pause_s
from tesela.plugin.slice_writer import FieldsDroppedError, SliceWriter

log = logging.getLogger(__name__)

REGISTERED = "the kubelet registered this driver"
"""The reason to wake with after a registration: the slices may be gone, and the API server may be another one."""


class PublisherLock(Protocol):
    """Held by the one process that writes this node's slices."""

    def acquire(self, timeout_s: float) -> bool:
        """Whether it is ours now, within `timeout_s`."""
        ...

    def release(self) -> None:
        """Gives it back; harmless where it is not held."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTimes:
    """When the publisher acts by itself, in seconds.

    `settle_s` lets a burst of foreign changes end before it is answered. Repairs of what somebody else keeps undoing
    come at once, then after `first_repair_s`, doubling to `longest_wait_s`; failures likewise.
    """

    resync_s: float = 300.0
    watch_s: float = 300.0
    settle_s: float = 0.05
    lock_wait_s: float = 1.0
    first_repair_s: float = 0.5
    first_retry_s: float = 0.2
    longest_wait_s: float = 30.0


class Round(StrEnum):
    """How one round ended."""

    UNCHANGED = "unchanged"
    WRITTEN = "written"
    POSTPONED = "postponed"
    NOT_HOLDER = "not holder"


class Publisher:
    """Publishes `state()` as this node's pool until stopped.

    `published` is set once the API holds a complete pool of this node, ours or that of the process that holds the lock:
    during a rolling update the new process must get ready before the old one ends.
    """

    def __init__(
        self,
        *,
        kube: Kube,
        node_name: str,
        state: Callable[[], PoolState],
        lock: PublisherLock,
        times: PublishTimes = PublishTimes(),
        clock: Callable[[], float] = time.monotonic,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self.published = threading.Event()
        self._kube = kube
        self._node_name = node_name
        self._state = state
        self._lock = lock
        self._times = times
        self._clock = clock
        self._writer = SliceWriter(kube, telemetry)
        self._selector = f"spec.driver={DRIVER_NAME},spec.nodeName={node_name}"
        self._held = False
        self._on_held: Callable[[], None] = lambda: None
        self._node_uid = ""
        self._abilities: ApiAbilities | None = None
        self._last: Pool | None = None
        self._last_state: PoolState | None = None
        self._repairs = RepairPace(times)
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._guard = threading.Lock()
        self._reasons: set[str] = set()
        self._threads: tuple[threading.Thread, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on what the last published pool leaves out, and why."""
        return self._last.remarks if self._last else ()

    @property
    def last_pool(self) -> Pool | None:
        """The pool as last published, None before that, and where another process holds the lock."""
        return self._last

    @property
    def last_state(self) -> PoolState | None:
        """What the last round rendered from, None before the first one and where another process holds the lock."""
        return self._last_state

    def find_fault(self) -> str | None:
        """What keeps it from working for good, as a sentence; None while all is well or once it was stopped."""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if self._stop.is_set():  # asked last: one that ends meanwhile by a stop is no fault
            return None
        return f"the thread {dead[0]} has ended" if dead else None

    def listen(self, on_held: Callable[[], None]) -> None:
        """Calls `on_held`, from a thread of ours, once the lock is ours: no older process serves this node then."""
        self._on_held = on_held

    def start(self) -> None:
        """Starts publishing in the background."""
        self.wake("start")
        threads = (
            threading.Thread(target=self._publish_until_stopped, name="publisher", daemon=True),
            threading.Thread(target=self._watch_until_stopped, name="publisher-watch", daemon=True),
        )
        for thread in threads:
            thread.start()
        self._threads = threads  # only now: one that has not begun would be taken for one that has ended

    def wake(self, reason: str) -> None:
        """Something changed: the next round comes at once. Costs nothing, from any thread."""
        with self._guard:
            self._reasons.add(reason)
        self._woken.set()

    def stop(self, timeout_s: float = 15.0) -> None:
        """Ends publishing; the slices stay. Waits at most `timeout_s` for a write that is under way."""
        self._stop.set()
        self._woken.set()
        if self._threads:
            # The watch ends with its connection or its own timeout; nothing depends on its thread.
            self._threads[0].join(timeout_s)

    def publish(self) -> Round:
        """One round: renders the whole pool and makes the API hold it. Raises what the API or `state` raised."""
        with self._guard:
            reasons, self._reasons = self._reasons, set()
        if REGISTERED in reasons:
            self._abilities = None
            self._writer.forget_abilities()
            # The kubelet wipes the slices of drivers it does not hear of in time: no quarrel, however soon it recurs.
            self._repairs.reset()
        if not self._held:
            self._held = self._lock.acquire(self._times.lock_wait_s)
            if self._held:
                self._on_held()
        if not self._held:
            if not self.published.is_set() and is_complete(self._list(), self._node_name):
                self.published.set()
            return Round.NOT_HOLDER
        self._last_state = state = self._state()
        outcome = self._reconcile(state, self._list())
        if outcome is not Round.POSTPONED:
            self.published.set()
        return outcome

    def _reconcile(self, state: PoolState, slices: tuple[Json, ...]) -> Round:
        abilities = self._abilities or ApiAbilities(split=is_split_version(self._kube.get_server_version()))
        while True:
            self._abilities = abilities
            pool = render_pool(state, abilities)
            try:
                outcome = self._make_equal(pool, slices)
                self._remember(pool, outcome)
                return outcome
            except FieldsDroppedError as error:
                # Ends: each turn takes away one of two abilities, and what is not sent cannot be dropped.
                log.warning("%s: only what is safe without them is published", error)
                abilities = replace(
                    abilities,
                    counters=abilities.counters and not error.counters,
                    taints=abilities.taints and not error.taints,
                )
                slices = self._list()

    def _make_equal(self, pool: Pool, slices: tuple[Json, ...]) -> Round:
        node = self._get_node(fresh=not self._node_uid)
        actions = plan_publication(slices, pool, node)
        if not actions:
            return Round.UNCHANGED
        if pool == self._last and not self._repairs.is_due(self._clock()):
            return Round.POSTPONED
        if any(isinstance(action, CreateSlice) for action in actions):
            # Slices whose node was registered anew were collected with it; with the old UID they would be again.
            actions = plan_publication(slices, pool, self._get_node(fresh=True))
        if pool == self._last:
            self._repairs.note(self._clock())
        self._writer.write(actions)
        log.info("published %d slices of pool %s with %d writes", len(pool.slices), pool.name, len(actions))
        return Round.WRITTEN

    def _remember(self, pool: Pool, outcome: Round) -> None:
        if outcome is Round.POSTPONED:
            return
        for remark in pool.remarks:
            if remark not in self.remarks:
                log.warning("%s", remark)
        self._last = pool

    def _get_node(self, *, fresh: bool) -> NodeRef:
        if fresh:
            try:
                self._node_uid = self._kube.get(NODES, self._node_name)["metadata"]["uid"]
            except ApiNotFound as error:
                raise ApiNotFound(
                    error.status, error.reason, f"node {self._node_name} is not registered yet: no slice can be owned"
                ) from error
        return NodeRef(name=self._node_name, uid=self._node_uid)

    def _list(self) -> tuple[Json, ...]:
        return self._kube.list(RESOURCE_SLICES, field_selector=self._selector).items

    def _publish_until_stopped(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._woken.clear()
            try:
                outcome = self.publish()
                failures = 0
            except Exception as error:
                failures += 1
                unexpected = not isinstance(error, TeselaError)
                log.warning("slices are not published yet, trying again: %s", error, exc_info=unexpected)
                self._stop.wait(self._retry_wait_s(failures, error))
                continue
            if not self._woken.wait(self._wait_s(outcome)):
                self.wake("timer")
        self._lock.release()

    def _wait_s(self, outcome: Round) -> float:
        match outcome:
            case Round.NOT_HOLDER:
                return 0.0  # the lock's own wait paces the rounds
            case Round.POSTPONED:
                return self._repairs.left_s(self._clock())
            case Round.UNCHANGED | Round.WRITTEN:
                return self._times.resync_s

    def _retry_wait_s(self, failures: int, error: Exception | None = None) -> float:
        asked_s = (error.retry_after_s or 0.0) if isinstance(error, ApiUnavailable) else 0.0
        return max(asked_s, _jitter(plan_pause_s(failures, self._times.first_retry_s, self._times.longest_wait_s)))

    def _watch_until_stopped(self) -> None:
        version, failures = "", 0
        while not self._stop.is_set():
            began_s = self._clock()
            try:
                if not version:
                    version = self._kube.list(RESOURCE_SLICES, field_selector=self._selector).resource_version
                    self.wake("the watch of slices began")
                version = self._watch(version)
                failures = 0
            except ApiGone:
                version = ""
            except ApiError as error:
                version, failures = "", failures + 1
                log.warning("the watch of slices broke, starting over: %s", error)
                self._stop.wait(self._retry_wait_s(failures, error))
            if self._clock() - began_s < self._times.first_retry_s:
                self._stop.wait(self._times.first_retry_s)  # paces a server that ends every watch at once

    def _watch(self, version: str) -> str:
        """Follows changes until the watch ends; returns where the next one begins."""
        events = self._kube.watch(
            RESOURCE_SLICES,
            field_selector=self._selector,
            resource_version=version,
            timeout_s=self._times.watch_s,
        )
        for event in events:
            version = event.object["metadata"]["resourceVersion"]
            if self._stop.is_set():
                break
            if event.type != "BOOKMARK" and not self._is_echo(event):
                self._stop.wait(self._times.settle_s)
                self.wake(f"slice {event.object['metadata']['name']}: {event.type}")
        return version

    def _is_echo(self, event: WatchEvent) -> bool:
        metadata = event.object["metadata"]
        if event.type == "DELETED":
            return self._writer.is_echo(metadata["name"], "")
        return self._writer.is_echo(metadata["name"], metadata["resourceVersion"])


class RepairPace:
    """How soon a change that somebody else made is undone: at once, then ever later while they keep at it."""

    def __init__(self, times: PublishTimes) -> None:
        self._times = times
        self._level = 0
        self._last_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Whether the next repair may be made."""
        return self.left_s(now_s) <= 0

    def left_s(self, now_s: float) -> float:
        """Seconds until then."""
        if self._last_s is None or self._level == 0:
            return 0.0
        return max(0.0, self._last_s + self._pause_s() - now_s)

    def reset(self) -> None:
        """The next repair comes at once."""
        self._level, self._last_s = 0, None

    def note(self, now_s: float) -> None:
        """A repair is made now. Twice the longest pause without one ends a quarrel."""
        if self._last_s is not None and now_s - self._last_s > 2 * self._times.longest_wait_s:
            self._level = 0
        self._level += 1
        self._last_s = now_s

    def _pause_s(self) -> float:
        return plan_pause_s(self._level, self._times.first_repair_s, self._times.longest_wait_s)


def _jitter(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 -- spreads callers, keeps no secret
