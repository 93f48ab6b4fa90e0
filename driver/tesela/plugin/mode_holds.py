"""Remember on which GPUs a switch of the MIG mode is refused again and again, and tell health.

One refusal is nothing: a process that ends soon. From the second in a row on, the devices of the shape that cannot be
had are tainted (`ModeHeld`), so that the scheduler goes elsewhere. It is over (`ModeFree`) when a switch succeeds, when
a sweep sees the GPU in the mode that was wanted, or sees nobody on it. A holder that neither NVML nor /proc shows is
tried again that way, two refusals at a time. The counts are this process's: after a restart they begin anew, while the
finding stands in health.json, from where `recall` tells of it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tesela.core.errors import TeselaError
from tesela.core.health.observations import ModeFree, ModeHeld
from tesela.plugin.mig_mode import ModeRefused

log = logging.getLogger(__name__)

HELD_AFTER: Final = 2
"""Refusals in a row of one mode."""


@dataclass(frozen=True, slots=True)
class _Refused:
    wants_mig: bool
    count: int


class ModeHolds:
    """The refused switches of all GPUs; safe from many threads. Until `attach`, nobody is told."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._refused: dict[str, _Refused] = {}
        self._observe: Callable[[ModeHeld | ModeFree], object] = lambda _observation: None
        self._recall: Callable[[], Mapping[str, bool]] = dict

    def attach(
        self, observe: Callable[[ModeHeld | ModeFree], object], recall: Callable[[], Mapping[str, bool]]
    ) -> None:
        """Tell `observe` from now on.

        `recall` names the GPUs that are known as held, from before a restart too, and whether MIG mode was wanted.
        """
        self._observe, self._recall = observe, recall

    @contextlib.contextmanager
    def noting(self, gpu_uuid: str) -> Iterator[None]:
        """Around one switch: a ModeRefused is counted and passed on; what ends well ends the count."""
        try:
            yield
        except ModeRefused as refused:
            self._note(refused)
            raise
        self.free(gpu_uuid)

    def list_held(self) -> dict[str, bool]:
        """GPUs with a refusal that stands, and whether MIG mode was wanted."""
        with self._guard:
            counted = {uuid: one.wants_mig for uuid, one in self._refused.items()}
        return {**self._recall(), **counted}

    def free(self, gpu_uuid: str) -> None:
        """The mode was switched, or can be."""
        with self._guard:
            counted = self._refused.pop(gpu_uuid, None)
        if counted is not None or gpu_uuid in self._recall():
            self._tell(ModeFree(gpu_uuid=gpu_uuid))

    def _note(self, refused: ModeRefused) -> None:
        with self._guard:
            before = self._refused.get(refused.gpu_uuid)
            count = before.count + 1 if before is not None and before.wants_mig == refused.wants_mig else 1
            self._refused[refused.gpu_uuid] = _Refused(wants_mig=refused.wants_mig, count=count)
        if count >= HELD_AFTER:
            self._tell(ModeHeld(gpu_uuid=refused.gpu_uuid, wants_mig=refused.wants_mig, holder=refused.holder))

    def _tell(self, observation: ModeHeld | ModeFree) -> None:
        """A health file that cannot be written must not change what becomes of the claim."""
        try:
            self._observe(observation)
        except TeselaError as error:
            log.warning("GPU %s: its MIG mode's state is not noted: %s", observation.gpu_uuid, error)
