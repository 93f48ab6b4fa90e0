"""What kube-apiserver refuses in a ResourceSlice, as a list of sentences: the limits of resource.k8s.io/v1."""

from __future__ import annotations

import re

from tesela.core.quantity import parse_quantity

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
IDENTIFIER = re.compile(r"([a-z0-9.-]{1,63}/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


def find_faults(spec, *, split):
    """Every rule that the spec of one slice breaks; `split`: the server is 1.35 or later."""
    sets, devices = spec.get("sharedCounters", []), spec.get("devices", [])
    faults = []
    if split and sets and devices:
        faults.append("devices and sharedCounters in one slice")
    limited = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    if len(devices) > (64 if limited else 128):
        faults.append(f"{len(devices)} devices")
    if len(sets) > 8:
        faults.append(f"{len(sets)} counter sets")
    faults += [f"{one['name']}: {len(one['counters'])} counters" for one in sets if not 0 < len(one["counters"]) <= 32]
    faults += [fault for device in devices for fault in find_device_faults(device)]
    if not split:
        known = {one["name"] for one in sets}
        faults += [
            f"{device['name']} names a counter set of another slice"
            for device in devices
            for one in device.get("consumesCounters", [])
            if one["counterSet"] not in known
        ]
    return faults


def find_device_faults(device):
    name = device["name"]
    faults = []
    if not LABEL.fullmatch(name) or len(name) > 63:
        faults.append(f"{name} is no DNS label")
    keys = [*device["attributes"], *device["capacity"]]
    if len(keys) > 32:
        faults.append(f"{name}: {len(keys)} attributes and capacities")
    faults += [f"{name}: key {key}" for key in keys if not IDENTIFIER.fullmatch(key)]
    for key, value in device["attributes"].items():
        if len(value) != 1:
            faults.append(f"{name}.{key}: {value} is not one value")
        if len(str(value.get("string", "")).encode()) > 64:
            faults.append(f"{name}.{key}: text too long")
        if "version" in value and not SEMVER.fullmatch(value["version"]):
            faults.append(f"{name}.{key}: no version")
    faults += [f"{name}: capacity {key}" for key, one in device["capacity"].items() if not _is_quantity(one)]
    consumed = device.get("consumesCounters", [])
    if len(consumed) > 2 or any(not 0 < len(one["counters"]) <= 32 for one in consumed):
        faults.append(f"{name}: too many counters")
    taints = device.get("taints", [])
    if len(taints) > 16 or any(not LABEL_VALUE.fullmatch(one.get("value", "")) for one in taints):
        faults.append(f"{name}: taints")
    return faults


def find_pool_faults(specs):
    """What makes the scheduler skip a pool: duplicate names, unknown counters, a wrong count."""
    names = [device["name"] for spec in specs for device in spec.get("devices", [])]
    sets = [one for spec in specs for one in spec.get("sharedCounters", [])]
    counters = {one["name"]: set(one["counters"]) for one in sets}
    faults = [f"duplicate device {name}" for name in set(names) if names.count(name) > 1]
    if len(counters) != len(sets):
        faults.append("duplicate counter set")
    faults += [
        f"{device['name']} consumes what {one['counterSet']} lacks"
        for spec in specs
        for device in spec.get("devices", [])
        for one in device.get("consumesCounters", [])
        if not set(one["counters"]) <= counters.get(one["counterSet"], set())
    ]
    return faults


def _is_quantity(capacity):
    return parse_quantity(capacity["value"]).nanos >= 0
