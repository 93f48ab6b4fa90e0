"""Ask the kubelet, twice a minute, which GPUs a device plugin gave to pods, so that no claim gets them as well.

It only fences: what a device plugin gives after a claim got the GPU, nobody here can hinder, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from tesela.core.device_plugins import RESOURCE_PREFIX, PluginUse
from tesela.core.errors import TryAgain
from tesela.plugin.loop import Loop, LoopPart

log = logging.getLogger(__name__)

PERIOD_S: Final = 30.0


class PluginUseSource(Protocol):
    """Who knows what device plugins gave."""

    def list_plugin_uses(self) -> tuple[PluginUse, ...]:
        """All of it. TryAgain: it cannot be told now."""
        ...


class PluginUses(LoopPart):
    """A thread that asks. `on_change` is told, and must not block, when the answer is another one."""

    def __init__(
        self, source: PluginUseSource, *, on_change: Callable[[str], None], period_s: float = PERIOD_S
    ) -> None:
        self._source = source
        self._on_change = on_change
        self._period_s = period_s
        self._uses: frozenset[PluginUse] = frozenset()
        self._problem = ""
        self._loop = Loop("device-plugins", self._turn)

    @property
    def uses(self) -> frozenset[PluginUse]:
        """What NVIDIA's device plugin gave, as last told: a kubelet that is away has taken nothing back."""
        return self._uses

    def _turn(self) -> float:
        try:
            told = self._source.list_plugin_uses()
        except TryAgain as error:
            if not self._problem:
                log.info("whether a device plugin gives GPUs of this node is not known: %s", error)
            self._problem = str(error)
            return self._period_s
        self._problem = ""
        uses = frozenset(one for one in told if one.resource.startswith(RESOURCE_PREFIX))
        for one in sorted(uses - self._uses):
            log.warning(
                "a device plugin gave %s %s to pod %s: it is tainted for claims; let one of the two have this node",
                one.resource,
                one.device_id,
                one.pod,
            )
        if uses != self._uses:
            self._uses = uses
            self._on_change("what a device plugin gave changed")
        return self._period_s
