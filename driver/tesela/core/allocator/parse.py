"""API JSON (resource.k8s.io/v1, as the API server stores it) into the nouns of `model`.

Fields that the allocator does not look at are skipped; absent defaults are filled in as the API server would. Nothing
is validated that the API server validates, but a value that cannot be read raises `DocumentError` with its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tesela.core.allocator.model import (
    AllocatedState,
    AllocationMode,
    AttributeConstraint,
    Capacity,
    Claim,
    CounterConsumption,
    CounterSet,
    Demand,
    Device,
    DeviceClass,
    DeviceConfig,
    DeviceId,
    NodeInfo,
    NodeRequirement,
    NodeScope,
    NodeSelectorTerm,
    PoolId,
    Request,
    RequestPolicy,
    Slice,
    Taint,
    Toleration,
)
from tesela.core.errors import DocumentError
from tesela.core.quantity import ZERO, Quantity, parse_quantity
from tesela.core.selector.attributes import Attribute, AttributeKind

Json = Mapping[str, Any]
Parsed = TypeVar("Parsed")

_MODES = {"": AllocationMode.EXACT_COUNT, "ExactCount": AllocationMode.EXACT_COUNT, "All": AllocationMode.ALL}


def parse_slices(documents: Iterable[Json]) -> tuple[Slice, ...]:
    """The slices in the order given; `allocate` sorts them itself."""
    return tuple(_named(_parse_slice, "ResourceSlice", document) for document in documents)


def parse_claim(document: Json) -> Claim:
    """A ResourceClaim's spec; its status is read by `parse_allocated`."""
    return _named(_parse_claim, "ResourceClaim", document)


def parse_class(document: Json) -> DeviceClass:
    """A DeviceClass."""
    spec = document.get("spec") or {}
    return DeviceClass(
        name=document["metadata"]["name"],
        selectors=_parse_selectors(spec.get("selectors") or ()),
        config=_parse_config(spec.get("config") or ()),
    )


def parse_node(document: Json) -> NodeInfo:
    """A Node's name and labels."""
    metadata = document["metadata"]
    return NodeInfo(name=metadata["name"], labels=dict(metadata.get("labels") or {}))


def parse_allocated(claims: Iterable[Json]) -> AllocatedState:
    """What the allocated ones of all the cluster's claims hold; claims without an allocation count for nothing.

    A result with a shareID is a share, any other holds the device whole, admin access holds nothing
    (pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go).
    """
    dedicated: set[DeviceId] = set()
    shared: set[DeviceId] = set()
    consumed: dict[DeviceId, dict[str, Quantity]] = {}
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if result.get("adminAccess"):
                continue
            if result.get("shareID") is None:
                dedicated.add(device)
                continue
            shared.add(device)
            if result.get("consumedCapacity") is not None:
                total = consumed.setdefault(device, {})
                for name, quantity in parse_quantities(result["consumedCapacity"]).items():
                    total[name] = total.get(name, ZERO) + quantity
    return AllocatedState(dedicated=frozenset(dedicated), shared=frozenset(shared), consumed=consumed)


def parse_quantities(document: Json) -> dict[str, Quantity]:
    """A map of names to quantities."""
    return {name: parse_quantity(text, name) for name, text in document.items()}


def _named(parse: Callable[[Json], Parsed], kind: str, document: Json) -> Parsed:
    """Parses; a field that cannot be read is named together with its object."""
    try:
        return parse(document)
    except DocumentError as error:
        raise DocumentError(f"{kind} {document['metadata']['name']} {error.path}", error.problem) from error


def _parse_claim(document: Json) -> Claim:
    metadata = document.get("metadata") or {}
    devices = (document.get("spec") or {}).get("devices") or {}
    return Claim(
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        requests=tuple(_parse_request(request) for request in devices.get("requests") or ()),
        constraints=tuple(_parse_constraint(constraint) for constraint in devices.get("constraints") or ()),
        config=_parse_config(devices.get("config") or ()),
    )


def _parse_slice(document: Json) -> Slice:
    spec = document["spec"]
    pool = spec["pool"]
    pool_id = PoolId(spec["driver"], pool["name"])
    return Slice(
        name=document["metadata"]["name"],
        pool=pool_id,
        generation=pool.get("generation", 0),
        slice_count=pool.get("resourceSliceCount", 0),
        scope=_parse_scope(spec),
        per_device_node_selection=bool(spec.get("perDeviceNodeSelection")),
        shared_counters=tuple(
            CounterSet(name=counter_set["name"], counters=_parse_values(counter_set.get("counters") or {}))
            for counter_set in spec.get("sharedCounters") or ()
        ),
        devices=tuple(_parse_device(device, pool_id) for device in spec.get("devices") or ()),
    )


def _parse_device(document: Json, pool: PoolId) -> Device:
    return Device(
        id=DeviceId(pool.driver, pool.pool, document["name"]),
        attributes={name: _parse_attribute(value) for name, value in (document.get("attributes") or {}).items()},
        capacity={
            name: _parse_capacity(value, f"devices[{document['name']}].capacity[{name}]")
            for name, value in (document.get("capacity") or {}).items()
        },
        consumes=tuple(
            CounterConsumption(
                counter_set=consumption["counterSet"],
                counters=_parse_values(consumption.get("counters") or {}),
                has_compatibility_groups=bool(consumption.get("compatibilityGroups")),
            )
            for consumption in document.get("consumesCounters") or ()
        ),
        taints=tuple(parse_taint(taint) for taint in document.get("taints") or ()),
        scope=_parse_scope(document),
        binds_to_node=bool(document.get("bindsToNode")),
        binding_conditions=_strings_or_none(document.get("bindingConditions")),
        binding_failure_conditions=_strings_or_none(document.get("bindingFailureConditions")),
        allow_multiple=bool(document.get("allowMultipleAllocations")),
    )


def parse_taint(document: Json) -> Taint:
    """A device taint."""
    return Taint(key=document["key"], value=document.get("value", ""), effect=document.get("effect", ""))


def _parse_attribute(document: Json) -> Attribute:
    for kind in AttributeKind:
        if kind is not AttributeKind.NONE and document.get(kind.value) is not None:
            value = document[kind.value]
            return Attribute(kind, tuple(value) if isinstance(value, list) else value)
    return Attribute(AttributeKind.NONE, "")


def _parse_capacity(document: Json, path: str) -> Capacity:
    policy = document.get("requestPolicy")
    return Capacity(
        value=parse_quantity(document["value"], f"{path}.value"),
        policy=_parse_policy(policy, f"{path}.requestPolicy") if policy else None,
    )


def _parse_policy(document: Json, path: str) -> RequestPolicy:
    valid_range = document.get("validRange") or {}

    def quantity(source: Json, key: str) -> Quantity | None:
        return parse_quantity(source[key], f"{path}.{key}") if source.get(key) is not None else None

    return RequestPolicy(
        default=quantity(document, "default"),
        valid_values=tuple(parse_quantity(value, f"{path}.validValues") for value in document.get("validValues") or ()),
        range_min=quantity(valid_range, "min"),
        range_max=quantity(valid_range, "max"),
        range_step=quantity(valid_range, "step"),
    )


def _parse_values(document: Json) -> dict[str, Quantity]:
    return {name: parse_quantity(counter["value"], name) for name, counter in document.items()}


def _parse_scope(document: Json) -> NodeScope:
    selector = document.get("nodeSelector")
    return NodeScope(
        node_name=document.get("nodeName"),
        all_nodes=bool(document.get("allNodes")),
        node_selector=(
            tuple(_parse_term(term) for term in selector.get("nodeSelectorTerms") or ())
            if selector is not None
            else None
        ),
    )


def _parse_term(document: Json) -> NodeSelectorTerm:
    def requirements(key: str) -> tuple[NodeRequirement, ...]:
        return tuple(
            NodeRequirement(key=entry["key"], operator=entry["operator"], values=tuple(entry.get("values") or ()))
            for entry in document.get(key) or ()
        )

    return NodeSelectorTerm(expressions=requirements("matchExpressions"), fields=requirements("matchFields"))


def _parse_request(document: Json) -> Request:
    name = document["name"]
    exactly, alternatives = document.get("exactly"), document.get("firstAvailable") or ()
    if alternatives:
        demands = tuple(_parse_demand(entry, entry["name"], name) for entry in alternatives)
        return Request(name=name, demands=demands)
    return Request(name=name, demands=(_parse_demand(exactly, name, ""),) if exactly is not None else ())


def _parse_demand(document: Json, name: str, parent: str) -> Demand:
    mode = document.get("allocationMode") or ""
    return Demand(
        name=name,
        parent=parent,
        device_class=document.get("deviceClassName", ""),
        selectors=_parse_selectors(document.get("selectors") or ()),
        mode=_MODES.get(mode, AllocationMode.UNKNOWN),
        mode_text=mode,
        count=document.get("count") or 1,
        admin_access=bool(document.get("adminAccess")) and not parent,
        tolerations=tuple(_parse_toleration(entry) for entry in document.get("tolerations") or ()),
        capacity=parse_quantities((document.get("capacity") or {}).get("requests") or {}),
        has_derived_attributes=bool(document.get("derivedAttributes")),
    )


def _parse_toleration(document: Json) -> Toleration:
    return Toleration(
        key=document.get("key", ""),
        operator=document.get("operator") or "Equal",
        value=document.get("value", ""),
        effect=document.get("effect", ""),
        document=dict(document),
    )


def _parse_constraint(document: Json) -> AttributeConstraint:
    return AttributeConstraint(
        requests=frozenset(document.get("requests") or ()),
        match_attribute=document.get("matchAttribute"),
        distinct_attribute=document.get("distinctAttribute"),
    )


def _parse_config(documents: Sequence[Json]) -> tuple[DeviceConfig, ...]:
    return tuple(
        DeviceConfig(
            body={key: value for key, value in document.items() if key != "requests"},
            requests=tuple(document.get("requests") or ()),
        )
        for document in documents
    )


def _parse_selectors(documents: Sequence[Json]) -> tuple[str | None, ...]:
    return tuple((document.get("cel") or {}).get("expression") for document in documents)


def _strings_or_none(value: Sequence[str] | None) -> tuple[str, ...] | None:
    return tuple(value) if value is not None else None
