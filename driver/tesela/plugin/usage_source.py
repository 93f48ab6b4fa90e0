"""What NVML says that a device uses: its memory, and by two samples of GPM how busy its multiprocessors were.

A sample is NVML's own memory: each is given back when the next one has come, when its device is held no longer, and
before NVML is closed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from tesela.core.errors import NvmlError, TryAgain
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import GpmSample, MemoryInfo, Nvml
from tesela.edge.telemetry.snapshot import Usage

log = logging.getLogger(__name__)

_LEAST_APART_S: Final = 0.5
"""Closer samples say more of the counters' own period than of the work (nvml.h: 100 ms at least)."""
_UNSUPPORTED: Final = (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The last sample of a device, when it was taken, and what it and the one before it said."""

    sample: GpmSample
    at_s: float
    ratio: float | None


class NvmlUsage:
    """Asks NVML. That a GPU keeps no GPM counters, or tells no memory, is remembered until `close`."""

    def __init__(self, nvml: Nvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._without_gpm: set[str] = set()
        self._without_memory: set[str] = set()

    def get_memory(self, held: Usage) -> MemoryInfo | None:
        """None on boards whose memory is the host's."""
        if held.gpu_uuid in self._without_memory:
            return None
        try:
            if held.profile:
                return self._nvml.get_mig_memory_info(held.gpu_uuid, held.uuid)
            return self._nvml.get_memory_info(held.gpu_uuid)
        except NvmlError as error:
            if error.code in _UNSUPPORTED:
                self._without_memory.add(held.gpu_uuid)
                return None
            raise

    def get_sm_activity(self, held: Usage) -> float | None:
        """Since it was asked last; None at first, and before Hopper."""
        if held.gpu_uuid in self._without_gpm:
            return None
        before = self._kept.pop(held.uuid, None)
        now_s = self._clock()
        if before is not None and now_s - before.at_s < _LEAST_APART_S:
            self._kept[held.uuid] = before
            return before.ratio
        try:
            sample = self._sample(held)
            ratio = None if before is None or sample is None else self._compare(before.sample, sample)
            if sample is not None:
                self._kept[held.uuid] = _Kept(sample, now_s, ratio)
            return ratio
        finally:
            if before is not None:
                self._free(before.sample)

    def keep(self, uuids: Collection[str]) -> None:
        """Give back the samples of all devices but these."""
        for uuid in [one for one in self._kept if one not in uuids]:
            kept = self._kept.pop(uuid, None)
            if kept is not None:
                self._free(kept.sample)

    def close(self) -> None:
        """Give back every sample, before NVML is closed."""
        self.keep(())
        self._without_gpm.clear()
        self._without_memory.clear()

    def _sample(self, held: Usage) -> GpmSample | None:
        try:
            if not held.profile:
                return self._nvml.get_gpm_sample(held.gpu_uuid)
            return None if held.gi_id is None else self._nvml.get_mig_gpm_sample(held.gpu_uuid, held.gi_id)
        except NvmlError as error:
            if error.code in _UNSUPPORTED:
                self._without_gpm.add(held.gpu_uuid)
                return None
            raise

    def _compare(self, before: GpmSample, after: GpmSample) -> float | None:
        try:
            (percent,) = self._nvml.get_gpm_metrics(before, after, (codes.GPM_SM_UTILIZATION,))
        except NvmlError as error:
            log.debug("two samples of GPU %s do not compare: %s", after.gpu_uuid, error)
            return None
        return None if percent is None else percent / 100

    def _free(self, sample: GpmSample) -> None:
        with contextlib.suppress(NvmlError, TryAgain):  # lost with its GPU, or NVML hangs: nothing can be given back
            self._nvml.free_gpm_sample(sample)
