"""Who else is on the node: a device plugin for these GPUs, another driver of our name, a kubelet that looks elsewhere.

Each is a condition, not an end: its sentence stands in the log, in /readyz, in an Event and in a metric for as long as
it is so, and goes when an operator has mended it. What a device plugin offers, no claim gets meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tesela.core.errors import ApiError
from tesela.core.trouble import Trouble
from tesela.edge.host.kubelets import list_kubelets
from tesela.edge.kube.port import NODES, Kube
from tesela.plugin.config import PluginConfig
from tesela.plugin.loop import Loop, LoopPart, plan_pause_s
from tesela.plugin.offer import Offer
from tesela.plugin.preflight import list_other_drivers

log = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
RETRY_S: Final = 2.0
LATE_S: Final = 20.0
"""A kubelet that watches the registry asks within a second or two."""
_NO_HANDLER: Final = "no handler registered for plugin type"
"""The kubelet's words (pkg/kubelet/pluginmanager) where nothing in it wants DRA plugins: their gate is off."""


class Tells(Protocol):
    """Who hears of what begins and ends. Must not block."""

    def announce_trouble(self, trouble: Trouble, sentence: str, *, over: bool) -> None:
        """`sentence` says what stands, or that it is `over`."""
        ...


@dataclass(slots=True)
class Registration:
    """What the kubelet said to this process: `refused` is its last reason, "" where it gave none."""

    registered: bool = False
    refused: str = ""
    since_s: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """From now on the kubelet can find this driver."""
        self.since_s = time.monotonic()

    def note(self, *, registered: bool, refused: str) -> None:
        """The kubelet answered."""
        self.registered, self.refused = registered, refused


class Neighbours(LoopPart):
    """A thread that looks twice a minute. `on_change` is told, and must not block, when the taints are others.

    `registration` is for whoever hears what the kubelet says; `own_socket` is this process' registrar. `offer` judges
    what the Node says of device plugins.
    """

    def __init__(
        self,
        config: PluginConfig,
        kube: Kube,
        tells: Tells,
        *,
        own_socket: Path,
        on_change: Callable[[str], None],
        registration: Registration | None = None,
        offer: Offer | None = None,
    ) -> None:
        self.registration = registration or Registration()
        self.offer = offer or Offer()
        self._config = config
        self._kube = kube
        self._tells = tells
        self._own_socket = own_socket
        self._on_change = on_change
        self._failures = 0
        self._standing: dict[Trouble, str] = {}
        self._loop = Loop("neighbours", self.look, first_s=PERIOD_S)

    def get_offered(self) -> tuple[str, ...]:
        """Resources that a device plugin offers here, as the Node said last; none where both are to share the node.

        One that offers nothing any more counts a minute longer: after a restart of the kubelet all look so.
        A Node that was never read is read now, so that no slice is written before. ApiError: it does not tell.
        """
        if self._config.beside_device_plugin:
            return ()
        return self._read_node() if self.offer.resources is None else self.offer.resources

    @property
    def standing(self) -> Mapping[Trouble, str]:
        """The sentence of each trouble that is not over."""
        return dict(self._standing)

    def wake(self) -> None:
        """Look at once: the kubelet answered."""
        self._loop.wake()

    def look(self) -> float:
        """Look once; seconds until the next look. Also before the first slice is written, so that it has the taints."""
        wait_s = PERIOD_S
        found = {Trouble.OTHER_DRIVER: next(list_other_drivers(self._config, but=(self._own_socket,)), "")}
        if not self._config.beside_device_plugin:
            try:
                self._read_node()
                self._failures = 0
            except ApiError as error:
                self._failures += 1
                if self._failures == 1:
                    log.info("whether a device plugin offers this node's GPUs is not known: %s", error)
                wait_s = plan_pause_s(self._failures, RETRY_S, PERIOD_S)
            found[Trouble.DEVICE_PLUGIN] = _describe_offered(self.offer.resources or ())
        found[Trouble.KUBELET] = self._describe_kubelet()
        for trouble, sentence in found.items():
            self._note(trouble, sentence)
        return wait_s

    def _read_node(self) -> tuple[str, ...]:
        status = self._kube.get(NODES, self._config.node_name).get("status") or {}
        before = self.offer.resources
        offered = self.offer.note(status.get("allocatable") or {})
        if offered != (before or ()):
            self._on_change("what a device plugin offers changed")
        return offered

    def _describe_kubelet(self) -> str:
        one = self.registration
        if one.registered:
            return ""
        if one.refused:
            return describe_refusal(one.refused)
        if time.monotonic() - one.since_s < LATE_S:
            return ""
        return describe_silence(self._config)

    def _note(self, trouble: Trouble, sentence: str) -> None:
        before = self._standing.get(trouble, "")
        if sentence == before:
            return
        if sentence:
            self._standing = {**self._standing, trouble: sentence}
            log.error("%s", sentence)
        else:
            self._standing = {one: said for one, said in self._standing.items() if one is not trouble}
            log.warning("over: %s", before)
        self._tells.announce_trouble(trouble, sentence or before, over=not sentence)


def describe_refusal(refused: str) -> str:
    """What a kubelet's reason means."""
    said = f"the kubelet refused to register this driver: {refused}"
    if _NO_HANDLER in refused:
        return f"{said}; turn on the feature gate DynamicResourceAllocation in the kubelet"
    return f"{said}; it asks again by itself"


def describe_silence(config: PluginConfig) -> str:
    """Why no kubelet may have asked, as far as the host's processes tell."""
    said = f"no kubelet asks at {config.registry_dir}"
    kubelets = list_kubelets(config.proc_root)
    if not kubelets:
        return f"{said}: is it running, and is that folder in its --root-dir? If not, set --kubelet-root to that"
    if any(one.root == config.registry_dir.parent for one in kubelets):
        return f"{said}, though its --root-dir is {config.registry_dir.parent}: look into the kubelet's log"
    seen = " and ".join(
        f"the kubelet (pid {one.pid}) has --root-dir={one.root}{' and is rootless' if one.rootless else ''}"
        for one in kubelets
    )
    return f"{said}: {seen}; set --kubelet-root to that, and mount its folders at the same paths"


def _describe_offered(resources: tuple[str, ...]) -> str:
    if not resources:
        return ""
    return (
        f"a device plugin offers {', '.join(resources)} on this node, and the scheduler counts that apart from claims: "
        "every device is tainted, so that no GPU is given twice; take the device plugin off this node, or allow both "
        "with --beside-device-plugin"
    )
