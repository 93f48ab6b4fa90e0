"""ResourceSlices as the API server keeps them: fields of closed gates dropped, values defaulted, limits enforced.

Rules: pkg/apis/resource/validation and pkg/registry/resource/resourceslice of Kubernetes 1.37, compared by the contract
suite with the real server. Pure: decides about one slice, knows no store.
"""

from __future__ import annotations

from typing import Any

from tesela.edge.embedded.gates import Features
from tesela.edge.embedded.problems import SEMVER, Problems
from tesela.edge.embedded.schema import Leaf, ListOf, MapOf, Schema, Struct
from tesela.edge.kube.port import Json

MAX_DEVICES = 128
MAX_DEVICES_WITH_TAINTS_OR_COUNTERS = 64
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
MAX_CONSUMES = 2
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_TAINTS = 16
MAX_VALUE_BYTES = 64
MAX_DRIVER_NAME = 63
MAX_POOL_NAME = 253
MAX_BINDING_CONDITIONS = 4
TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")
VALUE_FIELDS = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")

_S, _I, _B, _Q = Leaf.STRING, Leaf.INT, Leaf.BOOL, Leaf.QUANTITY
_COUNTERS = MapOf(Struct({"value": Leaf.VALUE}))
_POLICY = Struct(
    {
        "default": _Q,
        "validValues": ListOf(_Q),
        "validRange": Struct({"min": _Q, "max": _Q, "step": _Q}),
    }
)
_ATTRIBUTE = Struct(
    {
        "int": _I,
        "bool": _B,
        "string": _S,
        "version": _S,
        "ints": ListOf(_I),
        "bools": ListOf(_B),
        "strings": ListOf(_S),
        "versions": ListOf(_S),
    }
)
TAINT = Struct({"key": _S, "value": Leaf.OMITTED_STRING, "effect": _S, "timeAdded": Leaf.TIME})
_DEVICE = Struct(
    {
        "name": _S,
        "attributes": MapOf(_ATTRIBUTE),
        "capacity": MapOf(Struct({"value": Leaf.VALUE, "requestPolicy": _POLICY})),
        "consumesCounters": ListOf(
            Struct({"counterSet": _S, "counters": _COUNTERS, "compatibilityGroups": ListOf(_S)})
        ),
        "nodeName": _S,
        "nodeSelector": Leaf.RAW,
        "allNodes": _B,
        "taints": ListOf(TAINT),
        "bindsToNode": _B,
        "bindingConditions": ListOf(_S),
        "bindingFailureConditions": ListOf(_S),
        "allowMultipleAllocations": _B,
        "nodeAllocatableResources": Leaf.RAW,
    }
)
SLICE_SPEC: Schema = Struct(
    {
        "driver": _S,
        "pool": Struct({"name": _S, "generation": _I, "resourceSliceCount": _I}),
        "nodeName": _S,
        "nodeSelector": Leaf.RAW,
        "allNodes": _B,
        "perDeviceNodeSelection": _B,
        "devices": ListOf(_DEVICE),
        "sharedCounters": ListOf(Struct({"name": _S, "counters": _COUNTERS})),
        "partitionTypeAttribute": _S,
        "skipNodeOperations": ListOf(_S),
    }
)

# what vanishes silently while a gate is off: fields of the spec, fields of each device
GATED_SPEC_FIELDS = {
    "DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection"),
    "DRAPartitionableDevicesType": ("partitionTypeAttribute",),
    "DRAOptionalNodeOperations": ("skipNodeOperations",),
}
GATED_DEVICE_FIELDS = {
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceTaints": ("taints",),
    "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRANodeAllocatableResources": ("nodeAllocatableResources",),
}


def drop_gated(spec: Json, old: Json | None, features: Features) -> None:
    """Removes what closed gates hide; a field that the stored object uses already is kept on update."""
    for gate, fields in GATED_SPEC_FIELDS.items():
        if features.enabled(gate) or _uses(old, gate):
            continue
        for field in fields:
            spec.pop(field, None)
    for device in spec.get("devices", []):
        for gate, fields in GATED_DEVICE_FIELDS.items():
            if features.enabled(gate) or _uses(old, gate):
                continue
            for field in fields:
                device.pop(field, None)
        _drop_gated_values(device, features)


def _drop_gated_values(device: Json, features: Features) -> None:
    if not features.enabled("DRAConsumableCapacity"):
        for capacity in device.get("capacity", {}).values():
            capacity.pop("requestPolicy", None)
    if not features.enabled("DRADeviceCompatibilityGroups"):
        for consumption in device.get("consumesCounters", []):
            consumption.pop("compatibilityGroups", None)
    if not features.enabled("DRAListTypeAttributes"):
        for attribute in device.get("attributes", {}).values():
            for field in VALUE_FIELDS[4:]:
                attribute.pop(field, None)


def _uses(old: Json | None, gate: str) -> bool:
    if old is None:
        return False
    device_fields = GATED_DEVICE_FIELDS.get(gate, ())
    return any(field in old for field in GATED_SPEC_FIELDS.get(gate, ())) or any(
        field in device for device in old.get("devices", []) for field in device_fields
    )


def default_taints(spec: Json, now: str) -> None:
    """Sets `timeAdded` where it is missing; a writer that leaves it out restarts the eviction clock."""
    for device in spec.get("devices", []):
        for taint in device.get("taints", []):
            taint.setdefault("timeAdded", now)


def check_slice(spec: Json, old: Json | None, features: Features, problems: Problems) -> None:
    """Notes everything that the API server would refuse in this spec (422)."""
    pool = spec.get("pool", {})
    _check_pool(spec, pool, problems)
    if old is not None:
        for path, new_value, old_value in (
            ("spec.pool.name", pool.get("name"), old["pool"]["name"]),
            ("spec.driver", spec.get("driver"), old["driver"]),
            ("spec.nodeName", spec.get("nodeName"), old.get("nodeName")),
        ):
            if new_value != old_value:
                problems.invalid(path, new_value, "field is immutable")
    _check_node(spec, problems)
    devices, counter_sets = spec.get("devices", []), spec.get("sharedCounters", [])
    if features.splits_counters and "devices" in spec and "sharedCounters" in spec:
        problems.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    fewer = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    problems.too_many("spec.devices", len(devices), MAX_DEVICES_WITH_TAINTS_OR_COUNTERS if fewer else MAX_DEVICES)
    _check_counter_sets(counter_sets, problems)
    seen = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        _check_device(device, path, spec, problems)
        if not features.splits_counters:
            _check_local_counters(device, path, counter_sets, problems)
        if device.get("name") in seen:
            problems.duplicate(path, device["name"])
        seen.add(device.get("name"))


def _check_pool(spec: Json, pool: Json, problems: Problems) -> None:
    problems.dns_subdomain("spec.driver", spec.get("driver", "").lower(), MAX_DRIVER_NAME)
    check_pool_name("spec.pool.name", pool.get("name", ""), problems)
    if pool.get("resourceSliceCount", 0) <= 0:
        problems.invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
    if pool.get("generation", 0) < 0:
        problems.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")


def check_pool_name(path: str, name: str, problems: Problems) -> None:
    """Notes what is wrong with the name of a pool: subdomains with slashes between."""
    if not name:
        problems.required(path)
    elif len(name) > MAX_POOL_NAME:
        problems.too_long(path, MAX_POOL_NAME)
    else:
        for part in name.split("/"):
            problems.dns_subdomain(path, part)


def _check_node(spec: Json, problems: Problems) -> None:
    given = [field for field in NODE_FIELDS if spec.get(field) not in (None, "")]
    every = ", ".join(f"`{field}`" for field in NODE_FIELDS)
    for field in NODE_FIELDS[2:]:
        if spec.get(field) is False:
            problems.invalid(f"spec.{field}", "false", "must be either unset or set to true")
    if not given:
        problems.required("spec", f"exactly one of {every} is required")
    elif len(given) > 1:
        shown = "{" + ", ".join(f"`{field}`" for field in given) + "}"
        problems.invalid("spec", shown, f"exactly one of {every} is required, but multiple fields are set")
    if spec.get("nodeName"):
        problems.dns_subdomain("spec.nodeName", spec["nodeName"])


def _check_counter_sets(counter_sets: list[Json], problems: Problems) -> None:
    problems.too_many("spec.sharedCounters", len(counter_sets), MAX_COUNTER_SETS)
    seen = set()
    for index, counter_set in enumerate(counter_sets):
        path = f"spec.sharedCounters[{index}]"
        problems.dns_label(f"{path}.name", counter_set.get("name", ""))
        _check_counters(counter_set.get("counters", {}), f"{path}.counters", problems)
        if counter_set.get("name") in seen:
            problems.duplicate(path, counter_set["name"])
        seen.add(counter_set.get("name"))


def _check_counters(counters: Json, path: str, problems: Problems) -> None:
    if not counters:
        problems.required(path)
    problems.too_many(path, len(counters), MAX_COUNTERS)
    for name in sorted(counters):
        problems.dns_label(path, name)


def _check_device(device: Json, path: str, spec: Json, problems: Problems) -> None:
    problems.dns_label(f"{path}.name", device.get("name", ""))
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    total = len(attributes) + len(capacity)
    if total > MAX_ATTRIBUTES_AND_CAPACITIES:
        limit = MAX_ATTRIBUTES_AND_CAPACITIES
        problems.invalid(path, total, f"the total number of attributes and capacities must not exceed {limit}")
    for name in sorted(attributes):
        problems.qualified_name(f"{path}.attributes", name)
        _check_attribute(attributes[name], f"{path}.attributes[{name}]", problems)
    for name in sorted(capacity):
        problems.qualified_name(f"{path}.capacity", name)
        if "requestPolicy" in capacity[name] and not device.get("allowMultipleAllocations"):
            problems.forbidden(f"{path}.capacity[{name}].requestPolicy", "allowMultipleAllocations must be true")
    _check_consumption(device.get("consumesCounters", []), f"{path}.consumesCounters", problems)
    taints = device.get("taints", [])
    problems.too_many(f"{path}.taints", len(taints), MAX_TAINTS)
    for index, taint in enumerate(taints):
        check_taint(taint, f"{path}.taints[{index}]", problems)
    _check_binding(device, path, problems)
    _check_own_node(device, path, spec, problems)


def _check_own_node(device: Json, path: str, spec: Json, problems: Problems) -> None:
    given = [field for field in ("nodeName", "nodeSelector", "allNodes") if field in device]
    allowed = bool(spec.get("perDeviceNodeSelection"))
    condition = "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    if given and not allowed:
        text = f"`nodeName`, `nodeSelector` and `allNodes` can only be set if {condition}"
        problems.invalid(path, None, text)
    elif allowed and len(given) != 1:
        text = f"exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when {condition}"
        problems.required(path, text)


def _check_attribute(value: Json, path: str, problems: Problems) -> None:
    given = [field for field in VALUE_FIELDS if field in value]
    every = ", ".join(f"`{field}`" for field in VALUE_FIELDS)
    if not given:
        problems.invalid(path, "", f"must specify one of: {every}")
    elif len(given) > 1:
        problems.invalid(path, "{" + ", ".join(given) + "}", f"must specify exactly one of: {every}")
    for field in ("string", "version"):
        text: Any = value.get(field)
        if text is not None and len(text.encode()) > MAX_VALUE_BYTES:
            problems.too_long(f"{path}.{field}", MAX_VALUE_BYTES)
        elif field == "version" and text is not None and not SEMVER.fullmatch(text):
            problems.invalid(f"{path}.version", text, "must be a string compatible with semver.org spec 2.0.0")


def _check_consumption(consumption: list[Json], path: str, problems: Problems) -> None:
    problems.too_many(path, len(consumption), MAX_CONSUMES)
    seen = set()
    for index, entry in enumerate(consumption):
        problems.dns_label(f"{path}[{index}].counterSet", entry.get("counterSet", ""))
        _check_counters(entry.get("counters", {}), f"{path}[{index}].counters", problems)
        if entry.get("counterSet") in seen:
            problems.duplicate(f"{path}[{index}]", entry["counterSet"])
        seen.add(entry.get("counterSet"))


def _check_local_counters(device: Json, path: str, counter_sets: list[Json], problems: Problems) -> None:
    """Below 1.35 a device may only consume counters of its own slice."""
    known = {counter_set.get("name"): counter_set.get("counters", {}) for counter_set in counter_sets}
    for index, entry in enumerate(device.get("consumesCounters", [])):
        where = f"{path}.consumesCounters[{index}]"
        if entry.get("counterSet") not in known:
            problems.invalid(f"{where}.counterSet", entry.get("counterSet"), "must reference a counterSet of the slice")
            continue
        for name in sorted(set(entry.get("counters", {})) - set(known[entry["counterSet"]])):
            problems.invalid(f"{where}.counters", name, "must reference a counter of the counterSet")


def check_taint(taint: Json, path: str, problems: Problems) -> None:
    """Notes what is wrong with a taint, of a slice or of a DeviceTaintRule."""
    problems.label_key(f"{path}.key", taint.get("key", ""))
    problems.label_value(f"{path}.value", taint.get("value", ""))
    effect = taint.get("effect", "")
    if not effect:
        problems.required(f"{path}.effect")
    elif effect not in TAINT_EFFECTS:
        problems.unsupported(f"{path}.effect", effect, TAINT_EFFECTS)


def _check_binding(device: Json, path: str, problems: Problems) -> None:
    names = ("bindingConditions", "bindingFailureConditions")
    for field, other in (names, names[::-1]):
        problems.too_many(f"{path}.{field}", len(device.get(field, [])), MAX_BINDING_CONDITIONS)
        if field in device and other not in device:
            problems.invalid(f"{path}.{other}", None, f"{other} are required to use {field}")
