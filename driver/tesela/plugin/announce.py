"""Tells the cluster by Events what changed on this node, in the background and at a bounded rate.

Whoever announces never waits and cannot fail: announcements stand in a bounded queue, and what says the same as one
that was sent a short while ago becomes a count in that Event (its series). While the API server is away they wait for
it, up to an hour, which is as long as a server keeps Events.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from tesela.core.announcement import (
    Announcement,
    plan_adopted_announcement,
    plan_health_announcement,
    plan_in_use_announcement,
    plan_set_aside_announcement,
    plan_trouble_announcement,
    plan_unreadable_announcement,
)
from tesela.core.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable, TeselaError
from tesela.core.health.model import HealthChange
from tesela.core.model import DRIVER_NAME, ClaimRef
from tesela.core.record import ClaimRecord
from tesela.core.roster import Roster
from tesela.core.trouble import Trouble
from tesela.edge.kube.port import EVENTS, NODES, RESOURCE_CLAIMS, Json, Kube
from tesela.edge.kube.times import render_micro_time, render_time
from tesela.edge.telemetry.port import SILENT, Telemetry
from tesela.plugin.loop import Loop, LoopPart, plan_pause_s

log = logging.getLogger(__name__)

NAMESPACE: Final = "default"
"""Where Events about objects without namespace are."""
_MOST_QUEUED: Final = 256
_MOST_REMEMBERED: Final = 256
_IDLE_S: Final = 3600.0
_MOST_OF_NAME: Final = 220
"""Of the node's name in an Event's, which has at most 253 characters."""

_Moment: TypeAlias = tuple[float, float]
"""By the wall clock, which people read, and by the one that never jumps, which everything else goes by."""


class Announces(Protocol):
    """Who hears of files that were set aside and of partitions in use. No call blocks or raises."""

    def announce_set_aside(self, sentence: str, claim: ClaimRef | None = None) -> None:
        """A damaged file of ours was kept aside and replaced."""
        ...

    def announce_unreadable(self, sentence: str) -> None:
        """A record is damaged and cannot be rebuilt."""
        ...

    def announce_in_use(self, sentence: str, claim: ClaimRef) -> None:
        """A process keeps a partition from being given back."""
        ...

    def announce_adopted(self, sentence: str, *, complete: bool) -> None:
        """Claims of NVIDIA's driver were taken over; `complete`: all of them."""
        ...


class _Silent:
    def announce_set_aside(self, sentence: str, claim: ClaimRef | None = None) -> None:
        pass

    def announce_unreadable(self, sentence: str) -> None:
        pass

    def announce_in_use(self, sentence: str, claim: ClaimRef) -> None:
        pass

    def announce_adopted(self, sentence: str, *, complete: bool) -> None:
        pass


UNHEARD: Final[Announces] = _Silent()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncePace:
    """Seconds. `burst` writes at once, then one in `refill_s`.

    An Event counts repeats for `series_s` after it was made, once in `recount_s`. What could not be sent within
    `keep_s` is dropped. While the API server is away it is tried after `first_retry_s`, doubled up to
    `longest_retry_s`. `node_s`: how long the Node's UID is taken for granted.
    """

    burst: int = 10
    refill_s: float = 10.0
    series_s: float = 1800.0
    recount_s: float = 60.0
    keep_s: float = 3600.0
    first_retry_s: float = 1.0
    longest_retry_s: float = 60.0
    node_s: float = 600.0


@dataclass(slots=True)
class _Pending:
    """Announcements of one key that are not sent yet: `first_s` and `last_s` for people, `since_s` to count from."""

    announcement: Announcement
    first_s: float
    last_s: float
    since_s: float
    count: int = 1


@dataclass(slots=True)
class _Sent:
    """An Event that was made; `event` is None where another process made it, whose times only that one knows."""

    identity: str
    event: Json | None
    made_s: float
    counted_s: float
    count: int


class Announcer(LoopPart):
    """A background part that also implements `Announces`; what was not sent when it ends is only in the log.

    `telemetry` hears of every file that was set aside.
    """

    def __init__(
        self,
        kube: Kube,
        node_name: str,
        *,
        telemetry: Telemetry = SILENT,
        pace: AnnouncePace = AnnouncePace(),
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._node_name = node_name
        self._telemetry = telemetry
        self._pace = pace
        self._wall_clock = wall_clock
        self._clock = clock
        self._queue: deque[tuple[_Moment, Callable[[], Announcement | None]]] = deque(maxlen=_MOST_QUEUED)
        self._pending: dict[tuple[str, ...], _Pending] = {}
        self._sent: dict[tuple[str, ...], _Sent] = {}
        self._bucket = _Bucket(pace.burst, pace.refill_s, clock())
        self._node_uid, self._node_read_s = "", 0.0
        self._failures, self._retry_at_s = 0, -math.inf
        self._last_problem = ""
        self._loop = Loop("announcer", self.send)

    def announce_health(
        self, changes: Iterable[HealthChange], roster: Roster, records: Callable[[], Iterable[ClaimRecord]]
    ) -> None:
        """An Event per change. `records` is asked later, by this part's thread, for the claims that are touched."""
        for change in changes:
            self._post(partial(_plan_change, change, roster, records))

    def announce_set_aside(self, sentence: str, claim: ClaimRef | None = None) -> None:
        self._telemetry.count_record_set_aside()
        self._post(partial(plan_set_aside_announcement, sentence, claim))

    def announce_unreadable(self, sentence: str) -> None:
        self._post(partial(plan_unreadable_announcement, sentence))

    def announce_in_use(self, sentence: str, claim: ClaimRef) -> None:
        self._post(partial(plan_in_use_announcement, sentence, claim))

    def announce_adopted(self, sentence: str, *, complete: bool) -> None:
        self._post(partial(plan_adopted_announcement, sentence, complete=complete))

    def announce_trouble(self, trouble: Trouble, sentence: str, *, over: bool) -> None:
        """Something on the node is in this driver's way, or no longer."""
        self._post(partial(plan_trouble_announcement, trouble, sentence, over=over))

    def send(self) -> float:
        """One turn: sends what may be sent now. Seconds until there may be more to do."""
        self._take_queued()
        now_s = self._clock()
        if now_s < self._retry_at_s:
            return self._retry_at_s - now_s
        try:
            wait_s = self._send_pending()
        except ApiUnavailable as error:
            self._failures += 1
            pause_s = plan_pause_s(self._failures, self._pace.first_retry_s, self._pace.longest_retry_s)
            wait_s = max(error.retry_after_s or 0.0, pause_s)
            self._retry_at_s = self._clock() + wait_s
            self._say(f"Events wait for the API server: {error.message}")
            return wait_s
        self._failures, self._retry_at_s = 0, -math.inf
        return wait_s

    def _post(self, plan: Callable[[], Announcement | None]) -> None:
        if len(self._queue) == _MOST_QUEUED:
            self._say(f"more than {_MOST_QUEUED} Events wait: the oldest are dropped")
        self._queue.append(((self._wall_clock(), self._clock()), plan))
        self._loop.wake()

    def _take_queued(self) -> None:
        while self._queue:
            (at_s, since_s), plan = self._queue.popleft()
            announcement = plan()
            if announcement is None:
                continue
            known = self._pending.get(announcement.key)
            if known is not None:
                known.count += 1
                known.last_s = at_s
                continue
            self._pending[announcement.key] = _Pending(
                announcement=announcement, first_s=at_s, last_s=at_s, since_s=since_s
            )
            while len(self._pending) > _MOST_QUEUED:
                self._drop(next(iter(self._pending)), "too many wait")

    def _send_pending(self) -> float:
        wait_s = _IDLE_S
        for key, pending in list(self._pending.items()):
            if self._loop.must_end:
                break
            now_s = self._clock()
            if now_s - pending.since_s > self._pace.keep_s:
                self._drop(key, "the API server was away too long")
                continue
            due_s = self._due_s(key, now_s)
            if due_s <= now_s and not self._bucket.take(now_s):
                return self._bucket.left_s(now_s)
            if due_s > now_s:
                wait_s = min(wait_s, due_s - now_s)
                continue
            self._try_to_write(key, pending, now_s)
        return wait_s

    def _due_s(self, key: tuple[str, ...], now_s: float) -> float:
        sent = self._sent.get(key)
        if sent is None or now_s - sent.counted_s >= self._pace.recount_s:
            return now_s
        return sent.counted_s + self._pace.recount_s

    def _try_to_write(self, key: tuple[str, ...], pending: _Pending, now_s: float) -> None:
        try:
            self._write(key, pending, now_s)
        except ApiUnavailable:
            raise
        except ApiError as error:
            self._say(f"an Event was refused: {error}")
            self._drop(key, "refused")
        else:
            del self._pending[key]
            self._last_problem = ""

    def _write(self, key: tuple[str, ...], pending: _Pending, now_s: float) -> None:
        """A count in the Event that says the same, where one was made lately; a new Event otherwise."""
        sent, identity = self._sent.get(key), pending.announcement.identity
        if sent is not None and sent.event is not None and now_s - sent.made_s < self._pace.series_s:
            try:
                self._recount(sent, sent.event, pending)
            except ApiNotFound:
                log.debug("the Event of %s is gone; it is made anew", key)
            else:
                return
        made: Json | None
        made = event = self._render(pending, again=sent is not None and sent.identity == identity)
        try:
            self._kube.create(EVENTS, event)
        except ApiConflict:
            # by a call of ours whose answer was lost, by another driver process, or by the one before this; nothing of
            # an Event but its series may change, so what comes next is told by one of our own
            log.debug("the Event of %s was made already", key)
            made = None
        self._sent.pop(key, None)
        self._sent[key] = _Sent(identity=identity, event=made, made_s=now_s, counted_s=now_s, count=pending.count)
        while len(self._sent) > _MOST_REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def _recount(self, sent: _Sent, event: Json, pending: _Pending) -> None:
        count = sent.count + pending.count
        self._kube.replace(EVENTS, {**event, "series": _render_series(count, pending.last_s)})
        sent.count, sent.counted_s = count, self._clock()

    def _render(self, pending: _Pending, *, again: bool) -> Json:
        """`again`: there is an Event of the same occurrence, so this one has the time in its name."""
        said = pending.announcement
        when = f"-{int(pending.first_s * 1e6):x}" if again else ""
        event: Json = {
            "metadata": {
                "name": f"{self._node_name[:_MOST_OF_NAME].rstrip('-.')}.{said.identity}{when}",
                "namespace": NAMESPACE,
            },
            "eventTime": render_micro_time(pending.first_s),
            "reportingController": DRIVER_NAME,
            "reportingInstance": self._node_name[:128],
            "action": said.action,
            "reason": said.reason,
            "regarding": {"apiVersion": "v1", "kind": "Node", "name": self._node_name, "uid": self._get_node_uid()},
            "note": said.note,
            "type": said.kind,
        }
        if said.claim is not None:
            named = {"namespace": said.claim.namespace, "name": said.claim.name, "uid": said.claim.uid}
            event["related"] = {"apiVersion": RESOURCE_CLAIMS.api_version, "kind": RESOURCE_CLAIMS.kind, **named}
        if pending.count > 1:
            event["series"] = _render_series(pending.count, pending.last_s)
        return event

    def _get_node_uid(self) -> str:
        now_s = self._clock()
        if not self._node_uid or now_s - self._node_read_s >= self._pace.node_s:
            try:
                self._node_uid = self._kube.get(NODES, self._node_name)["metadata"]["uid"]
            except ApiNotFound:
                self._node_uid = self._node_name  # as kubelets name a Node that they only know by name
            self._node_read_s = now_s
        return self._node_uid

    def _drop(self, key: tuple[str, ...], why: str) -> None:
        log.warning("no Event tells (%s): %s", why, self._pending.pop(key).announcement.note)

    def _say(self, problem: str) -> None:
        if problem != self._last_problem:
            log.warning("%s", problem)
        self._last_problem = problem


class _Bucket:
    """A token bucket."""

    def __init__(self, burst: int, refill_s: float, now_s: float) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._tokens = float(burst)
        self._filled_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether there was a token, which is gone then."""
        gained = (now_s - self._filled_s) / self._refill_s
        self._tokens, self._filled_s = min(float(self._burst), self._tokens + gained), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def left_s(self, now_s: float) -> float:
        """Seconds until the next one."""
        return max(0.05, (1 - self._tokens) * self._refill_s - (now_s - self._filled_s))


def _plan_change(
    change: HealthChange, roster: Roster, records: Callable[[], Iterable[ClaimRecord]]
) -> Announcement | None:
    try:
        held = tuple(records())
    except TeselaError as error:
        log.warning("an Event does not name the claims that hold the GPU: %s", error)
        held = ()
    announcement = plan_health_announcement(change, roster, held, render_time)
    if announcement is not None:  # in the log whether or not the API server takes an Event
        log.log(logging.INFO if announcement.kind == "Normal" else logging.WARNING, "%s", announcement.note)
    return announcement


def _render_series(count: int, last_s: float) -> Json:
    return {"count": count, "lastObservedTime": render_micro_time(last_s)}
