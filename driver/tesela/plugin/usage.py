"""What the devices that claims hold use: asked of NVML in a thread of its own, and only while somebody scrapes.

A scrape never waits for NVML: it wakes this thread, gives it a moment, and takes what is there. A figure that is
missing, or too old to be true, has no series.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from tesela.core.errors import NvmlError, TryAgain
from tesela.core.geometry import find_profile
from tesela.core.record import ClaimRecord, ClaimState, RecordedDevice
from tesela.core.roster import Roster
from tesela.edge.nvml.port import MemoryInfo
from tesela.edge.telemetry.snapshot import Usage
from tesela.plugin.loop import Loop, PausablePart
from tesela.plugin.side_by_side import run_side_by_side

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S: Final = 1.0
_FRESH_S: Final = 60.0
_LOOK_TIMEOUT_S: Final = 5.0
_REST_S: Final = 600.0
"""A scrape wakes the thread. One that wakes by itself knows that nobody has scraped for this long."""


class UsageSource(Protocol):
    """Who knows what a device uses; None where it cannot be told. NvmlError and TryAgain mean the same, this time."""

    def get_memory(self, held: Usage) -> MemoryInfo | None:
        """Memory of a whole GPU, or of a MIG device."""
        ...

    def get_sm_activity(self, held: Usage) -> float | None:
        """How busy its multiprocessors were since it was asked last, 0 to 1."""
        ...

    def keep(self, uuids: Collection[str]) -> None:
        """Only these devices are asked about from now on."""

    def close(self) -> None:
        """Let go of what NVML holds for it: NVML is about to be closed."""


@dataclass(frozen=True, slots=True)
class _Sample:
    usage: tuple[Usage, ...] = ()
    at_s: float = float("-inf")


class UsageSampler(PausablePart):
    """A part of the node program: `read` is the scrape's, the thread does the asking."""

    def __init__(
        self,
        *,
        records: Callable[[], Iterable[ClaimRecord]],
        roster: Callable[[], Roster],
        source: UsageSource,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._roster = roster
        self._source = source
        self._clock = clock
        self._sampled = threading.Condition()
        self._sample = _Sample()
        self._wanted = False
        self._loop = Loop("usage", self._turn, first_s=_REST_S)

    def stop(self, timeout_s: float) -> bool:
        """End; False where a call into NVML is under way after that."""
        ended = super().stop(timeout_s)
        if ended:
            self._source.close()
        return ended

    def pause(self, timeout_s: float) -> bool:
        """Call NVML no more until `resume`. False: a call is under way after `timeout_s`."""
        paused = super().pause(timeout_s)
        if paused:
            self._source.close()
            self._sample = _Sample()  # figures of before, which are those of nobody when it goes on
        return paused

    def read(self, patience_s: float = PATIENCE_S) -> tuple[Usage, ...]:
        """The figures of this moment; after `patience_s` those of before, if they are fresh enough, else none.

        Of those, only what is held still. While it is paused, none and at once.
        """
        asked_s = self._clock()
        if self._loop.must_end:
            return ()
        with self._sampled:
            self._wanted = True
            self._loop.wake()
            self._sampled.wait_for(lambda: self._sample.at_s >= asked_s, patience_s)
            sample = self._sample
        if sample.at_s >= asked_s:
            return sample.usage
        if self._clock() - sample.at_s > _FRESH_S:
            return ()
        held = {_name(one) for one in list_held(self._records(), self._roster())}
        return tuple(one for one in sample.usage if _name(one) in held)

    def look(self) -> tuple[Usage, ...]:
        """Asks now, GPUs side by side. Those that do not answer in time are left out."""
        held = list_held(self._records(), self._roster())
        self._source.keep({one.uuid for one in held})
        uuids = sorted({one.gpu_uuid for one in held})
        looks = {uuid: partial(self._look_at, [one for one in held if one.gpu_uuid == uuid]) for uuid in uuids}
        found = run_side_by_side(looks, timeout_s=_LOOK_TIMEOUT_S, name="usage")
        return tuple(one for uuid in uuids for one in found.get(uuid, ()))

    def _turn(self) -> float:
        with self._sampled:
            wanted, self._wanted = self._wanted, False
        if not wanted:
            self._source.keep(())  # nobody scrapes, or no more: NVML is not asked, and keeps nothing for us
            return _REST_S
        at_s = self._clock()
        usage = self.look()
        with self._sampled:
            self._sample = _Sample(usage, at_s)
            self._sampled.notify_all()
        return _REST_S

    def _look_at(self, held: Sequence[Usage]) -> tuple[Usage, ...]:
        return tuple(self._measure(one) for one in held)

    def _measure(self, held: Usage) -> Usage:
        memory, activity = _ask(self._source.get_memory, held), _ask(self._source.get_sm_activity, held)
        if memory is not None:
            held = replace(held, memory_used_bytes=memory.used_bytes, memory_total_bytes=memory.total_bytes)
        return replace(held, sm_activity_ratio=activity)


def _name(one: Usage) -> tuple[str, str, str]:
    return one.uuid, one.namespace, one.claim


def _ask(question: Callable[[Usage], T | None], held: Usage) -> T | None:
    try:
        return question(held)
    except (NvmlError, TryAgain) as error:
        log.debug("what %s of GPU %s uses is not known: %s", held.uuid, held.gpu_uuid, error)
        return None


def list_held(records: Iterable[ClaimRecord], roster: Roster) -> tuple[Usage, ...]:
    """The devices that prepared claims hold, without figures but for a partition's size, which its profile says."""
    return tuple(
        held
        for record in records
        if record.state is ClaimState.PREPARED
        for device in record.devices
        if not device.admin_access and (held := _describe(record, device, roster)) is not None
    )


def _describe(record: ClaimRecord, device: RecordedDevice, roster: Roster) -> Usage | None:
    known, current = roster.find(device.gpu_uuid), device.current
    if known is None or not known.present or (current is not None and current.mig_uuid is None):
        return None
    profile = find_profile(known.gpu, current.profile_id) if current is not None else None
    return Usage(
        gpu_uuid=device.gpu_uuid,
        uuid=(current.mig_uuid or "") if current is not None else device.gpu_uuid,
        profile=current.profile if current is not None else "",
        gi_id=current.gi_id if current is not None else None,
        namespace=record.claim.namespace,
        claim=record.claim.name,
        memory_total_bytes=profile.memory_bytes if profile is not None else None,
    )
