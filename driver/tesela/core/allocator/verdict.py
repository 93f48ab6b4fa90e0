"""What the allocator answers: a closed union, so that a caller handles every case by type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tesela.core.allocator.model import Device, DeviceConfig, DeviceId, NodeScope, NodeSelectorTerm, Toleration
from tesela.core.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """One device given to one request (DeviceRequestAllocationResult).

    `request` is the request's name, or `request/subrequest`. `share_id` is set for a device that allows several
    allocations; `consumed` then holds what the share takes of every capacity of the device. `scope` is where the device
    can be reached.
    """

    request: str
    device: Device
    scope: NodeScope
    admin_access: bool = False
    share_id: str | None = None
    consumed: Mapping[str, Quantity] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def id(self) -> DeviceId:
        """The device's full name."""
        return self.device.id


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationConfig:
    """A configuration with its source, `FromClass` or `FromClaim`; no requests means all of them."""

    source: str
    requests: tuple[str, ...]
    config: DeviceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """What one claim gets. `node_selector` None: usable on every node."""

    results: tuple[DeviceResult, ...]
    config: tuple[AllocationConfig, ...]
    node_selector: NodeSelectorTerm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """Every claim got its devices; `claims` are in the order asked."""

    claims: tuple[ClaimAllocation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unallocatable:
    """No way on this node; another node may do. The scheduler answers UnschedulableAndUnresolvable with `reason`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The input is wrong; the scheduler ends the whole cycle with this message, for all nodes (SchedulerError)."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """We cannot tell what the scheduler would do: `what` names a CEL function we lack, or the limit that was hit."""

    what: str


Verdict = Allocated | Unallocatable | Fatal | Undecided


class FatalError(Exception):
    """Carries a `Fatal` out of the search."""


class UndecidedError(Exception):
    """Carries an `Undecided` out of the search."""
