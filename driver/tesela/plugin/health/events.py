"""Wait for what NVML tells by itself: one event set for all GPUs, and one thread that waits on it.

An event tells that something happened, never that it still holds: an Xid is an observation, every other type only asks
for a reading. Equal events of a tenth of a second are one observation, so a storm costs what it costs NVML. A wait may
end with GPU_IS_LOST for ever (one driver filled its log with that): each GPU is looked at, the set is opened again
without the lost ones, and where that does not help, ever more rarely.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.health.observations import GpuLost, Observation, StormSeen, XidSeen
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import EventSet, Nvml, NvmlEvent
from tesela.edge.telemetry.port import SILENT, Telemetry
from tesela.plugin.deadline import Deadline
from tesela.plugin.health.attribution import Attribution
from tesela.plugin.health.keeper import HealthKeeper
from tesela.plugin.lookout import Lookout
from tesela.plugin.loop import Loop, PausablePart, plan_pause_s

log = logging.getLogger(__name__)

BATCH_S: Final = 0.1
_MOST_IN_A_BATCH: Final = 400
"""What comes faster waits in NVML, which has its own limit: this thread's share of a CPU is bounded."""
_WANTED: Final = (
    codes.EVENT_DOUBLE_BIT_ECC
    | codes.EVENT_XID
    | codes.EVENT_SINGLE_BIT_ECC_STORM
    | codes.EVENT_GPU_UNAVAILABLE
    | codes.EVENT_RECOVERY_ACTION
)
"""Each GPU is asked which of these it has. Single-bit errors are read instead: some boards have thousands."""

Watched: TypeAlias = frozenset[tuple[str, int]]
"""GPUs by UUID and generation: what becomes of a registration in a reset or a reload is not documented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """In seconds: how long one wait lasts, and the pauses after failures."""

    wait_s: float = 2.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSet:
    """An event set, and the GPUs that should be in it and are not, because they failed."""

    event_set: EventSet
    left_out: frozenset[str]


class Events(PausablePart):
    """The thread that waits. `on_event` is told that the GPUs deserve a reading; it must not block."""

    def __init__(
        self,
        *,
        nvml: Nvml,
        lookout: Lookout,
        attribution: Attribution,
        keeper: HealthKeeper,
        on_event: Callable[[], None],
        telemetry: Telemetry = SILENT,
        times: EventTimes = EventTimes(),
    ) -> None:
        self._nvml = nvml
        self._lookout = lookout
        self._attribution = attribution
        self._keeper = keeper
        self._on_event = on_event
        self._telemetry = telemetry
        self._times = times
        self._failures = 0
        self._last_problem = ""
        self._opened: EventSet | None = None
        self._loop = Loop("events", self._turn, longest_turn_s=math.inf)  # a turn lasts as long as its event set

    @property
    def is_open(self) -> bool:
        """Whether an event set is open and waited on."""
        return self._opened is not None

    def stop(self, timeout_s: float) -> bool:
        """Close the set and end; False where a call is still inside NVML after that."""
        return self._end(self._loop.stop, timeout_s)

    def pause(self, timeout_s: float) -> bool:
        """Close the set, and call NVML no more until `resume`. False: a call is still inside NVML after `timeout_s`."""
        return self._end(self._loop.pause, timeout_s)

    def resume(self) -> None:
        """Open a set again, at once."""
        self._failures = 0
        super().resume()

    def _end(self, end: Callable[[float], bool], timeout_s: float) -> bool:
        """`end`, by which a wait under way would go on for its time: closing its set cuts that short."""
        deadline = Deadline.after(timeout_s)
        if end(0.0):
            return True
        opened = self._opened
        if opened is not None:
            # Aside, since closing waits for a wait that does not end.
            threading.Thread(target=_close, args=(opened,), name="events-close", daemon=True).start()
        return end(deadline.left_s)

    def _turn(self) -> float:
        """One event set, from opening it to the reason to open another; seconds until then."""
        watched = self._list_watched()
        if not watched:
            return self._times.wait_s
        opened = self._open(uuid for uuid, _ in sorted(watched))
        if opened is None:
            return self._pause_s()
        try:
            self._opened = opened.event_set
            self._on_event()  # what happened before now is delivered to nobody
            self._follow(opened, watched)
        except (NvmlError, NvmlTimeout) as error:
            if self._loop.must_end:
                return 0.0
            self._note(f"a wait for events of NVML failed: {error}")
            found_lost = self._tell_lost(uuid for uuid, _ in sorted(watched) if uuid not in opened.left_out)
            pause_s = self._pause_s()
            # A GPU that fell off the bus is left out of the next set, and its neighbours may have much to tell now.
            return 0.0 if found_lost and self._failures == 1 else pause_s
        finally:
            self._opened = None
            _close(opened.event_set)
        return 0.0

    def _follow(self, opened: _OpenSet, watched: Watched) -> None:
        """Until this set is not the right one any more."""
        retry_s = time.monotonic() + self._times.longest_pause_s
        while not self._loop.must_end:
            event = opened.event_set.wait(self._times.wait_s)
            if event is not None:
                self._handle(self._collect(opened.event_set, event))
            self._failures = 0
            if not opened.left_out:
                self._note("")
            if self._list_watched() != watched:
                return
            if opened.left_out and time.monotonic() >= retry_s:
                if any(self._answers(uuid) for uuid in sorted(opened.left_out)):
                    return  # what happens between two sets is told by nobody, so only for one that may be in the next
                retry_s = time.monotonic() + self._times.longest_pause_s

    def _list_watched(self) -> Watched:
        return frozenset((known.gpu.uuid, known.generation) for known in self._lookout.roster.gpus if known.present)

    # Opening

    def _open(self, uuids: Iterable[str]) -> _OpenSet | None:
        """A set for all GPUs that can be registered; None where NVML opens none."""
        registrations: list[tuple[str, int]] = []
        left_out: set[str] = set()
        for uuid in uuids:
            try:
                mask = self._nvml.get_supported_event_types(uuid) & _WANTED
                if self._is_lost(uuid):
                    left_out.add(uuid)
                elif mask:
                    registrations.append((uuid, mask))
            except (NvmlError, NvmlTimeout) as error:
                if not (isinstance(error, NvmlError) and error.code == codes.NOT_SUPPORTED):
                    self._note(f"GPU {uuid} cannot be registered for events: {error}")
                    left_out.add(uuid)
        event_set = self._register(registrations, left_out)
        return None if event_set is None else _OpenSet(event_set=event_set, left_out=frozenset(left_out))

    def _register(self, registrations: list[tuple[str, int]], left_out: set[str]) -> EventSet | None:
        """NVML does not say which of several GPUs it refuses: then each is tried, and those are left out."""
        try:
            return self._nvml.open_event_set(registrations) if registrations else None
        except (NvmlError, NvmlTimeout) as error:
            self._note(f"NVML opens no event set: {error}")
        good = [one for one in registrations if self._can_register(one)] if len(registrations) > 1 else []
        left_out.update(uuid for uuid, _ in registrations if (uuid, _) not in good)
        try:
            return self._nvml.open_event_set(good) if good else None
        except (NvmlError, NvmlTimeout) as error:
            self._note(f"NVML opens no event set: {error}")
            return None

    def _can_register(self, registration: tuple[str, int]) -> bool:
        try:
            _close(self._nvml.open_event_set([registration]))
        except (NvmlError, NvmlTimeout) as error:
            self._note(f"GPU {registration[0]} cannot be registered for events: {error}")
            return False
        return True

    # Events

    def _collect(self, event_set: EventSet, first: NvmlEvent) -> list[NvmlEvent]:
        """The event with what else comes in a tenth of a second. A wait that fails will fail again, and be told."""
        self._loop.rest(BATCH_S)
        events = [first]
        with contextlib.suppress(NvmlError, NvmlTimeout):
            while len(events) < _MOST_IN_A_BATCH and (event := event_set.wait(0.0)) is not None:
                events.append(event)
        return events

    def _handle(self, events: list[NvmlEvent]) -> None:
        xids = Counter((one.gpu_uuid, one.gi_id, one.data) for one in events if one.event_type == codes.EVENT_XID)
        storms = Counter(one.gpu_uuid for one in events if one.event_type == codes.EVENT_SINGLE_BIT_ECC_STORM)
        seen: list[Observation] = [StormSeen(gpu_uuid=uuid, count=count) for uuid, count in storms.items()]
        seen.extend(
            XidSeen(gpu_uuid=uuid, xid=xid, count=count) for (uuid, gi_id, xid), count in xids.items() if gi_id is None
        )
        for (uuid, _, xid), count in xids.items():
            self._telemetry.count_xids(uuid, xid, count)
        self._keeper.post(*seen)  # before anything is asked of a GPU that may hang
        self._on_event()
        places = {(uuid, gi_id): None for uuid, gi_id, _ in xids if gi_id is not None}
        found = {place: self._attribution.find_placement(*place) for place in places}
        self._keeper.post(
            *(
                XidSeen(gpu_uuid=uuid, xid=xid, placement=found[uuid, gi_id], count=count)
                for (uuid, gi_id, xid), count in xids.items()
                if gi_id is not None
            )
        )

    # Failures

    def _tell_lost(self, uuids: Iterable[str]) -> bool:
        """Whether one of them is lost."""
        lost = [uuid for uuid in uuids if self._is_lost(uuid)]
        self._keeper.post(*(GpuLost(gpu_uuid=uuid) for uuid in lost))
        self._on_event()
        return bool(lost)

    def _is_lost(self, uuid: str) -> bool:
        """One that hangs, or says something else, is not lost."""
        return self._answers(uuid) is False

    def _answers(self, uuid: str) -> bool | None:
        """Asks for what only the GPU itself can answer. False: it is lost. None: it hangs, and may be anything."""
        try:
            self._nvml.get_memory_info(uuid)
        except NvmlError as error:
            return error.code not in codes.GPU_GONE
        except NvmlTimeout:
            return None
        return True

    def _note(self, problem: str) -> None:
        """A failure counts and is said once, as long as it is the same; "" is none."""
        if not problem:
            if self._last_problem:
                log.info("events of NVML are delivered again")
            self._failures, self._last_problem = 0, ""
            return
        if problem != self._last_problem:
            log.warning("%s; it is tried again, ever more rarely", problem)
        self._last_problem = problem

    def _pause_s(self) -> float:
        self._failures += 1
        return plan_pause_s(self._failures, self._times.first_pause_s, self._times.longest_pause_s)


def _close(event_set: EventSet) -> None:
    try:
        event_set.close()
    except (NvmlError, NvmlTimeout) as error:
        log.warning("an event set was not closed: %s", error)
