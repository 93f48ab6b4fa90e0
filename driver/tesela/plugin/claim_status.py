"""Writes into the status of prepared claims what their devices are and how they are, in the background.

Level-triggered: each turn compares what records and health say with what this process last saw to be so, and asks the
API only about claims that differ. The claim itself is read before it is written, so a restart writes nothing that is
there already. Nobody waits for it: prepare only wakes it, and it lets a burst of prepares pass first. A claim that is
given back, deallocated or gone is left to Kubernetes, which clears the status itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tesela.core.claim_status import DeviceStatus, differ, is_allocated, plan_device_statuses, render_entries
from tesela.core.errors import ApiError, ApiNotFound, ApiUnavailable
from tesela.core.health.model import NodeHealth
from tesela.core.model import DRIVER_NAME, ClaimRef
from tesela.edge.kube.port import RESOURCE_CLAIMS, Json, Kube
from tesela.edge.kube.times import render_time
from tesela.edge.store.records import RecordStore
from tesela.edge.telemetry.work import Verb, working_on
from tesela.plugin.loop import Loop, LoopPart, plan_pause_s

log = logging.getLogger(__name__)

FIELD_MANAGER: Final = DRIVER_NAME
"""The owner of our entries (KEP-4817 asks each driver to have one of its own)."""
_MOST_TRIES: Final = 3
_AWAY, _GATE = _SERVER = ("away", "gate")
"""What there is to say of the API server; the rest is about claims, by UID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPace:
    """Seconds. A turn begins once nobody woke for `quiet_s`, after `longest_quiet_s` at the latest.

    The first turn comes after `first_s`: at a start others need the machine more. `pause_s` lies between two claims,
    and a turn longer than `turn_s` goes on as the next one. `look_s`: another driver process may prepare claims, of
    which nobody wakes us. `verify_s`: how often what lies in the API is read again. After a failure the next turn comes
    in `first_retry_s`, doubled up to `longest_retry_s`.
    """

    quiet_s: float = 0.25
    longest_quiet_s: float = 10.0
    first_s: float = 2.0
    pause_s: float = 0.05
    turn_s: float = 10.0
    look_s: float = 30.0
    verify_s: float = 600.0
    first_retry_s: float = 1.0
    longest_retry_s: float = 60.0


@dataclass(slots=True)
class _Known:
    """What was last seen to be so of one claim. `tries` counts refused writes of it."""

    statuses: tuple[DeviceStatus, ...]
    seen_s: float
    is_so: bool = True
    tries: int = 0


class ClaimStatusWriter(LoopPart):
    """A background part; `wake` tells it that records or health changed. `unread` says why nobody looks, if so."""

    def __init__(
        self,
        kube: Kube,
        records: RecordStore,
        health: Callable[[], NodeHealth],
        *,
        unread: Callable[[], str] = lambda: "",
        pace: StatusPace = StatusPace(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._records = records
        self._health = health
        self._unread = unread
        self._pace = pace
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._failures = 0
        self._has_more = self._overdue = False
        self._said: dict[str, str] = {}
        self._closed_until_s = 0.0
        self._first_wake_s: float | None = None
        self._last_wake_s = 0.0
        self._loop = Loop("claim-status", self._turn, first_s=pace.first_s)

    def wake(self) -> None:
        """Something changed. Never blocks; from any thread. Of a burst, only the first call costs a wake-up."""
        self._last_wake_s = now_s = time.monotonic()
        if self._first_wake_s is None:
            self._first_wake_s = now_s
            self._loop.wake()

    def write(self) -> bool:
        """One look at all records; False where some claim is to be tried again soon."""
        self._has_more, health, unread, now_s = False, self._health(), self._unread(), time.monotonic()
        plans = {
            record.claim: statuses
            for record in self._records.list().records
            if record.claim.name and (statuses := plan_device_statuses(record, health, unread=unread))
        }
        living = {ref.uid for ref in plans}
        self._known = {uid: known for uid, known in self._known.items() if uid in living}
        self._said = {about: said for about, said in self._said.items() if about in living or about in _SERVER}
        done = True
        for ref, statuses in plans.items():
            self._has_more = self._must_break_off(now_s)
            if self._has_more:
                break
            if self._is_due(ref, statuses, now_s):
                with working_on(Verb.STATUS, ref):
                    done = self._attempt(ref, statuses) and done
                self._loop.rest(self._pace.pause_s)
        return done

    def _must_break_off(self, began_s: float) -> bool:
        """Also where a prepare came meanwhile: it goes first, unless that went on for too long already."""
        disturbed = self._first_wake_s is not None and not self._overdue
        return disturbed or self._loop.must_end or time.monotonic() - began_s > self._pace.turn_s

    def _turn(self) -> float:
        self._overdue = not self._wait_for_quiet()
        self._first_wake_s = None  # whoever wakes from here on, during the look, causes another one
        try:
            done = self.write()
        except ApiUnavailable as error:
            self._failures += 1
            self._say(_AWAY, f"the API server is away, claims are told of their devices later: {error.message}")
            return max(error.retry_after_s or 0.0, self._retry_s())
        self._say(_AWAY, "")
        self._failures = 0 if done else self._failures + 1
        if self._has_more:
            return 0.0
        return self._pace.look_s if done else self._retry_s()

    def _wait_for_quiet(self) -> bool:
        """Whether it became quiet; False where that took too long."""
        first_s = self._first_wake_s
        while first_s is not None and not self._loop.must_end:
            now_s = time.monotonic()
            if now_s >= first_s + self._pace.longest_quiet_s:
                return False
            if now_s >= self._last_wake_s + self._pace.quiet_s:
                return True
            left_s = min(first_s + self._pace.longest_quiet_s, self._last_wake_s + self._pace.quiet_s) - now_s
            self._loop.rest(left_s)
        return True

    def _retry_s(self) -> float:
        return plan_pause_s(self._failures, self._pace.first_retry_s, self._pace.longest_retry_s)

    def _is_due(self, ref: ClaimRef, statuses: tuple[DeviceStatus, ...], now_s: float) -> bool:
        known = self._known.get(ref.uid)
        if known is None or known.statuses != statuses:
            return True
        return not known.is_so or now_s - known.seen_s >= self._pace.verify_s

    def _attempt(self, ref: ClaimRef, statuses: tuple[DeviceStatus, ...]) -> bool:
        """Make the API say `statuses`. ApiUnavailable ends the look: the next claim would fare no better."""
        known = self._known.get(ref.uid)
        tries = known.tries if known is not None and known.statuses == statuses and not known.is_so else 0
        is_so = True
        try:
            self._make_so(ref, statuses)
        except ApiUnavailable:
            raise
        except ApiNotFound:
            log.debug("claim %s is gone; its status is nobody's", ref)
        except ApiError as error:
            tries += 1
            is_so = tries >= _MOST_TRIES  # until something changes, or the next verification
            self._say(ref.uid, f"the status of claim {ref} does not tell of its devices: {error}")
        else:
            self._say(ref.uid, "")
        self._known[ref.uid] = _Known(statuses=statuses, seen_s=time.monotonic(), is_so=is_so, tries=tries)
        return is_so

    def _make_so(self, ref: ClaimRef, statuses: tuple[DeviceStatus, ...]) -> None:
        if time.monotonic() < self._closed_until_s:
            return  # the server keeps none of it: one claim in `verify_s` finds out whether it does now
        claim = self._kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        if claim["metadata"]["uid"] != ref.uid or not is_allocated(statuses, claim):
            return  # deallocated, or replaced by one of the same name: not the claim that was prepared
        before = (claim.get("status") or {}).get("devices") or []
        entries = render_entries(statuses, before, render_time(self._clock()))
        if not differ(entries, before):
            return
        metadata = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
        obj: Json = {"metadata": metadata, "status": {"devices": entries}}
        kept = self._kube.apply_status(RESOURCE_CLAIMS, obj, field_manager=FIELD_MANAGER)
        if not (kept.get("status") or {}).get("devices"):
            self._closed_until_s = time.monotonic() + self._pace.verify_s
            self._say(_GATE, "the API server drops status.devices of claims: open DRAResourceClaimDeviceStatus there")
        else:
            self._say(_GATE, "")

    def _say(self, about: str, problem: str) -> None:
        """Once, until it is another one or over ("")."""
        if problem and self._said.get(about) != problem:
            log.warning("%s", problem)
        self._said[about] = problem
