"""What happened to the GPUs of a machine, as NVML's event sets deliver it: one log for all clients.

A client keeps no place on the simulator's side: it names, per GPU, the types it wants and the number of the last event
it knows. The upper half of a number is drawn anew for each log, so that a client of an earlier life is told so.
Which act on a GPU is recorded as what is decided in `machine`.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.refused import Refused

CAPACITY: Final = 4096
"""A client that is further behind has missed what is older."""
MAX_WAIT_S: Final = 5.0
"""One wait on the simulator's side; a client that wants to wait longer asks again."""
_LIFE_BITS: Final = 31
_COUNT_BITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A client wants the events of `mask` on one GPU that came after number `since`."""

    gpu_uuid: str
    mask: int
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """nvmlEventData_t, with the GPU by UUID; instances are None where the event is not attributed to any."""

    gpu_uuid: str
    event_type: int
    data: int
    gi_id: int | None
    ci_id: int | None
    number: int


class EventLog:
    """The last `CAPACITY` events of a machine; safe to use from many threads."""

    def __init__(self) -> None:
        self._first = secrets.randbits(_LIFE_BITS) << _COUNT_BITS
        self._last = self._first
        self._events: deque[Event] = deque(maxlen=CAPACITY)
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._waiter_came = threading.Condition(lock)
        self._waiters = 0
        self._releases = 0

    @property
    def cursor(self) -> int:
        """The number of the last event: what comes later is after it."""
        return self._last

    def record(
        self, gpu_uuid: str, event_type: int, *, data: int = 0, gi_id: int | None = None, ci_id: int | None = None
    ) -> None:
        """Adds an event and wakes who waits for it."""
        with self._changed:
            self._last += 1
            event = Event(
                gpu_uuid=gpu_uuid, event_type=event_type, data=data, gi_id=gi_id, ci_id=ci_id, number=self._last
            )
            self._events.append(event)
            self._changed.notify_all()

    def wait(self, registrations: Sequence[Registration], timeout_s: float) -> Event | None:
        """The earliest event that is wanted, or None if none comes within `timeout_s` and MAX_WAIT_S.

        Refused: GPU_IS_LOST for a registration with another life of the simulator.
        """
        wanted: dict[str, list[Registration]] = {}
        for registration in registrations:
            wanted.setdefault(registration.gpu_uuid, []).append(registration)
        with self._changed:
            # An upper half of its own per log: a number of another life is neither behind nor ahead, it is not ours.
            if any(not self._first <= r.since <= self._last for r in registrations):
                raise Refused(codes.GPU_IS_LOST)
            seen = min((r.since for r in registrations), default=self._last)
            releases, found = self._releases, None

            def arrived() -> bool:
                nonlocal seen, found
                found = self._find(wanted, seen)
                seen = self._last
                return found is not None or self._releases != releases

            self._waiters += 1
            self._waiter_came.notify_all()
            try:
                self._changed.wait_for(arrived, min(timeout_s, MAX_WAIT_S))
            finally:
                self._waiters -= 1
            return found

    def wait_for_waiters(self, count: int, timeout_s: float) -> bool:
        """Whether `count` threads wait for an event within `timeout_s`: tests wait on this instead of sleeping."""
        with self._waiter_came:
            return self._waiter_came.wait_for(lambda: self._waiters >= count, timeout_s)

    def release(self) -> None:
        """Ends every wait that has begun; NVML's may end early too."""
        with self._changed:
            self._releases += 1
            self._changed.notify_all()

    def _find(self, wanted: dict[str, list[Registration]], seen: int) -> Event | None:
        newer = min(self._last - seen, len(self._events))
        for index in range(len(self._events) - newer, len(self._events)):
            event = self._events[index]
            for registration in wanted.get(event.gpu_uuid, ()):
                if event.number > registration.since and event.event_type & registration.mask:
                    return event
        return None
