"""What a client of the simulator keeps of an event set: the GPUs and types registered, and how far it has read.

The simulator keeps nothing per client, so a set is this and the call that waits; threads are `edge.nvml.event_set`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import NvmlEvent
from tesela.edge.simulator.events import Event, Registration

WaitEvent: TypeAlias = Callable[[Sequence[Registration], int], Event]
"""Waits so many milliseconds; NvmlError with TIMEOUT where nothing came."""


class RegisteredEvents:
    """The registrations of one set. One thread at a time."""

    def __init__(self, wait_event: WaitEvent) -> None:
        self._wait_event = wait_event
        self._registrations: list[Registration] = []

    def add(self, gpu_uuid: str, mask: int, since: int) -> None:
        """Delivers from now on what `mask` names and came after number `since`."""
        self._registrations.append(Registration(gpu_uuid=gpu_uuid, mask=mask, since=since))

    def wait_slice(self, timeout_s: float) -> NvmlEvent | None:
        """The next event, or None if none comes within `timeout_s`."""
        try:
            event = self._wait_event(self._registrations, math.ceil(timeout_s * 1000))
        except NvmlError as error:
            if error.code != codes.TIMEOUT:
                raise
            return None
        # It was the earliest that any registration wanted: all of them have read so far.
        self._registrations = [replace(r, since=max(r.since, event.number)) for r in self._registrations]
        return NvmlEvent(
            gpu_uuid=event.gpu_uuid,
            event_type=event.event_type,
            data=event.data,
            gi_id=event.gi_id,
            ci_id=event.ci_id,
        )
