"""The nouns that the allocator reads: slices, devices, claims, classes, a node, and what is in use already.

Fields carry the API's words (resource.k8s.io/v1) and only those the allocator looks at. `parse` builds them from JSON;
decisions live in the modules beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from tesela.core.quantity import Quantity
from tesela.core.selector.attributes import Attribute


class DeviceId(NamedTuple):
    """A device's full name in the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class PoolId(NamedTuple):
    """A pool's full name; pools are tried in this order."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return "/".join(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """How much of a capacity one request may take (CapacityRequestPolicy)."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    range_min: Quantity | None = None
    range_max: Quantity | None = None
    range_step: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A device's capacity under one name."""

    value: Quantity
    policy: RequestPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterConsumption:
    """What a device takes from one counter set."""

    counter_set: str
    counters: Mapping[str, Quantity]
    has_compatibility_groups: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSet:
    """A named set of counters shared by the devices of a pool."""

    name: str
    counters: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A device taint; effects other than NoSchedule and NoExecute do not keep claims away."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A request's toleration; `document` is copied into the result as it was written."""

    key: str
    operator: str
    value: str
    effect: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequirement:
    """One requirement of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSelectorTerm:
    """Requirements that must all hold; a term without any matches no node."""

    expressions: tuple[NodeRequirement, ...] = ()
    fields: tuple[NodeRequirement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScope:
    """Where a slice or a device can be reached; at most one of the three is set."""

    node_name: str | None = None
    all_nodes: bool = False
    node_selector: tuple[NodeSelectorTerm, ...] | None = None

    @property
    def is_set(self) -> bool:
        """Whether the scope says anything."""
        return bool(self.node_name) or self.all_nodes or self.node_selector is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a slice. `binding_conditions` is None where the slice does not mention them."""

    id: DeviceId
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    consumes: tuple[CounterConsumption, ...] = ()
    taints: tuple[Taint, ...] = ()
    scope: NodeScope = NodeScope()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None
    allow_multiple: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A ResourceSlice: devices or shared counters of one generation of a pool."""

    name: str
    pool: PoolId
    generation: int
    slice_count: int
    scope: NodeScope
    per_device_node_selection: bool = False
    shared_counters: tuple[CounterSet, ...] = ()
    devices: tuple[Device, ...] = ()


class AllocationMode(Enum):
    """How many devices a request wants; UNKNOWN is a mode of some future API."""

    EXACT_COUNT = "ExactCount"
    ALL = "All"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What `exactly` or one entry of `firstAvailable` asks for. A selector without CEL is None.

    `parent` is the request's name for an entry of `firstAvailable`, else empty.
    """

    name: str
    parent: str = ""
    device_class: str = ""
    selectors: tuple[str | None, ...] = ()
    mode: AllocationMode = AllocationMode.EXACT_COUNT
    mode_text: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: Mapping[str, Quantity] = field(default_factory=dict)
    has_derived_attributes: bool = False

    @property
    def result_name(self) -> str:
        """The name that results carry: `request` or `request/subrequest`."""
        return f"{self.parent}/{self.name}" if self.parent else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of a claim: `demands` is one entry for `exactly`, several for `firstAvailable`, none for neither."""

    name: str
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeConstraint:
    """matchAttribute or distinctAttribute over `requests` (all if empty); neither is a kind of some future API."""

    requests: frozenset[str] = frozenset()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """A configuration of a class or claim; `body` is everything but `requests` (`opaque`)."""

    body: Mapping[str, Any]
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A ResourceClaim's spec and names."""

    namespace: str
    name: str
    uid: str
    requests: tuple[Request, ...]
    constraints: tuple[AttributeConstraint, ...] = ()
    config: tuple[DeviceConfig, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """A DeviceClass; a selector without CEL is None."""

    name: str
    selectors: tuple[str | None, ...] = ()
    config: tuple[DeviceConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The node that devices are wanted on."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedState:
    """What every allocated claim of the cluster holds; admin access holds nothing.

    `dedicated`: held whole. `shared`: held through at least one share. `consumed`: capacity taken by shares.
    """

    dedicated: frozenset[DeviceId] = frozenset()
    shared: frozenset[DeviceId] = frozenset()
    consumed: Mapping[DeviceId, Mapping[str, Quantity]] = field(default_factory=dict)

    def holds(self, device: DeviceId) -> bool:
        """Whether anybody holds the device, whole or in shares."""
        return device in self.dedicated or self.holds_share(device)

    def holds_share(self, device: DeviceId) -> bool:
        """Whether somebody holds a share of the device."""
        return device in self.shared or device in self.consumed
