"""NVML released for an operator's work on the GPU driver or a GPU: who asked for it, why, and how far it is.

NVML is released while anybody asks for it. Requests come from `tesela release-gpu` on the node and from a label of the
node; each is withdrawn the way it came. Pure: who reads and writes it is `plugin/release_gpu.py` and
`cli/release_gpu.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tesela.core.roster import Roster
from tesela.core.slices.state import Fence, render_label_value

RELEASED_KEY: Final = "gpu.nvidia.com/released"
RELEASE_LABEL: Final = "gpu.nvidia.com/release-gpu"
_NOT_TAKEN_UP: Final = "the driver has not taken that up: is `tesela plugin` running on this node? Look at its log"


class Source(StrEnum):
    """How a request came, and goes."""

    COMMAND = "command"
    LABEL = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. `since_s` is in Unix seconds."""

    source: Source
    reason: str
    requested_by: str
    since_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What the driver and those who ask it tell each other.

    `closed_by` is the process that closed NVML last, "" while none has; `problem` says what keeps it from closing or
    opening NVML.
    """

    requests: tuple[Request, ...] = ()
    closed_by: str = ""
    closed_s: int = 0
    problem: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether NVML is to be closed."""
        return bool(self.requests)

    def has(self, source: Source) -> bool:
        """Whether somebody asks for it this way."""
        return any(one.source is source for one in self.requests)

    def with_request(self, request: Request) -> Released:
        """With this request; one that came the same way before stays as it was."""
        if self.has(request.source):
            return self
        return replace(self, requests=(*self.requests, request), problem="")

    def without(self, source: Source) -> Released:
        """Without the request that came this way."""
        return replace(self, requests=tuple(one for one in self.requests if one.source is not source), problem="")

    def without_until_open(self, source: Source) -> Released:
        """As `without`, and never NOT_RELEASED by that alone: the driver makes it so once claims are prepared again.

        So whoever withdraws the last request can wait for that, though the driver was about to close NVML just then.
        """
        left = self.without(source)
        return left if left.is_wanted or self == NOT_RELEASED else replace(left, problem=_NOT_TAKEN_UP)


NOT_RELEASED: Final = Released()


def render_askers(released: Released) -> str:
    """Who asks, and why: `alex (driver 590)`."""
    return " and ".join(f"{one.requested_by} ({one.reason})" for one in released.requests)


def render_sentence(released: Released, node_name: str) -> str:
    """What a claim is told meanwhile: who asked, why, and what ends it."""
    if not released.requests:
        return "NVML is about to be opened again; the kubelet tries again by itself"
    ends = {
        Source.COMMAND: "`tesela release-gpu --resume` on this node",
        Source.LABEL: f"`kubectl label node {node_name} {RELEASE_LABEL}-`",
    }
    how = " and ".join(ends[one.source] for one in released.requests)
    asked = render_askers(released)
    return f"NVML is released for maintenance by {asked}; {how} ends that, and the kubelet tries again by itself"


def plan_released_fences(released: Released, roster: Roster) -> tuple[Fence, ...]:
    """A taint on every device while NVML is to be closed: nothing new comes to a node that cannot prepare it."""
    if not released.is_wanted:
        return ()
    value = render_label_value(released.requests[0].reason) or "maintenance"
    return tuple(Fence(gpu_uuid=known.gpu.uuid, placement=None, key=RELEASED_KEY, value=value) for known in roster.gpus)


def describe_released(released: Released) -> str:
    """Why nobody knows how a device is, for those who are told of its health; "" while NVML is not to be released."""
    if not released.is_wanted:
        return ""
    return f"NVML is released for maintenance by {render_askers(released)}, so nobody looks at this device"
