"""From a desired pool and the slices that the API holds to the writes that make them equal; none when they are.

The rules are those of Kubernetes' own slice controller (resourceslice helper of v1.37): a slice is matched by the index
in front of its object name, what exists is adopted, the generation is raised when a slice is created or more than one
changes, and the time of an unchanged taint is kept. Two differences: a slice of an older generation is rewritten in
place rather than deleted, and writes follow the index, so that counter sets always stand before their devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tesela.core.model import DRIVER_NAME
from tesela.core.quantity import parse_quantity
from tesela.core.slices.pool import Pool, SliceContent
from tesela.core.slices.state import Json

API_VERSION = "resource.k8s.io/v1"
_INDEX = re.compile(r"([0-9a-f]{5,})-")
_LONGEST_NODE = 200  # generateName holds at most 253 characters

TaintKey: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRef:
    """The node that owns the slices."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSlice:
    """Delete under both preconditions; not found is as good."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceSlice:
    """Replace with this object, which carries the resource version that was read.

    `had_counters`: the stored slice has counters already, which a server keeps on update even with the gate off.
    """

    obj: Json
    had_counters: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSlice:
    """Create this object; the server completes its name."""

    obj: Json


SliceAction: TypeAlias = DeleteSlice | ReplaceSlice | CreateSlice


def plan_publication(existing: Iterable[Json], desired: Pool, node: NodeRef) -> tuple[SliceAction, ...]:
    """The writes, in order, that turn `existing` (all slices of this driver on this node) into `desired`.

    Deletes come first, then replaces and creates by index.
    """
    slices = list(existing)
    adopted, obsolete = _adopt(slices, desired)
    generation = max((_generation(one) for one in slices if _pool_name(one) == desired.name), default=0)
    times = _collect_taint_times(slices)
    missing = len(adopted) < len(desired.slices)
    if missing or _count_changes(adopted, desired, node, generation) > 1:
        generation += 1
    actions: list[SliceAction] = [_render_delete(one) for one in obsolete]
    for index, content in enumerate(desired.slices):
        spec = _render_spec(content, desired, node, generation, times)
        current = adopted.get(index)
        if current is None:
            actions.append(CreateSlice(obj=_render_object(index, spec, node)))
        elif _differs(current, spec, node):
            had_counters = bool(current["spec"].get("sharedCounters")) or _consumes(current["spec"])
            actions.append(ReplaceSlice(obj=_render_replacement(current, spec, node), had_counters=had_counters))
    return tuple(actions)


def is_complete(existing: Iterable[Json], pool_name: str) -> bool:
    """Whether the newest generation of the pool is all there, as the scheduler counts it."""
    slices = [one for one in existing if _pool_name(one) == pool_name]
    newest = max((_generation(one) for one in slices), default=0)
    current = [one for one in slices if _generation(one) == newest]
    return bool(current) and all(one["spec"]["pool"].get("resourceSliceCount") == len(current) for one in current)


def lost_counters(sent: Json, kept: Json) -> bool:
    """Whether the server dropped counters of a slice (gate DRAPartitionableDevices off)."""
    wanted, stored = sent["spec"], kept.get("spec", {})
    lost_sets = bool(wanted.get("sharedCounters")) and not stored.get("sharedCounters")
    return lost_sets or (_consumes(wanted) and not _consumes(stored))


def lost_taints(sent: Json, kept: Json) -> bool:
    """Whether the server dropped taints of a slice (gate DRADeviceTaints off)."""
    return bool(_list_taints(sent["spec"])) and not _list_taints(kept.get("spec", {}))


def canonical_spec(spec: Json) -> Json:
    """A spec in a form that is equal for equal meaning: quantities by value, nothing empty, no time of a taint."""
    counter_sets = [{**one, "counters": _canonical_values(one)} for one in spec.get("sharedCounters") or ()]
    devices = [_canonical_device(device) for device in spec.get("devices") or ()]
    return _drop_empty({**spec, "sharedCounters": counter_sets, "devices": devices})


def _adopt(slices: Sequence[Json], desired: Pool) -> tuple[dict[int, Json], list[Json]]:
    """One slice per wanted index, the newest generation first, the oldest object of those; the rest is obsolete."""
    adopted: dict[int, Json] = {}
    obsolete: list[Json] = []
    for one in sorted(slices, key=lambda s: (-_generation(s), s["metadata"].get("creationTimestamp") or "", _name(s))):
        index = _index(one)
        wanted = index is not None and index < len(desired.slices) and _pool_name(one) == desired.name
        if index is None or not wanted or index in adopted:
            obsolete.append(one)
        else:
            adopted[index] = one
    return adopted, obsolete


def _count_changes(adopted: Mapping[int, Json], desired: Pool, node: NodeRef, generation: int) -> int:
    return sum(
        _differs(one, _render_spec(desired.slices[index], desired, node, generation, {}), node)
        for index, one in adopted.items()
    )


def _differs(current: Json, spec: Json, node: NodeRef) -> bool:
    return canonical_spec(current["spec"]) != canonical_spec(spec) or _owner(node) not in _owners(current)


def _render_spec(
    content: SliceContent, pool: Pool, node: NodeRef, generation: int, times: Mapping[TaintKey, str]
) -> Json:
    spec: Json = {
        "driver": DRIVER_NAME,
        "nodeName": node.name,
        "pool": {"name": pool.name, "generation": generation, "resourceSliceCount": len(pool.slices)},
    }
    if content.counter_sets:
        spec["sharedCounters"] = list(content.counter_sets)
    if content.devices:
        spec["devices"] = [_keep_taint_times(device, times) for device in content.devices]
    return spec


def _render_object(index: int, spec: Json, node: NodeRef) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": f"{index:05x}-{DRIVER_NAME}-{node.name[:_LONGEST_NODE]}-",
            "ownerReferences": [_owner(node)],
        },
        "spec": spec,
    }


def _render_replacement(current: Json, spec: Json, node: NodeRef) -> Json:
    """The current object with our spec: metadata that others added (labels, annotations, finalizers) is kept."""
    others = [owner for owner in _owners(current) if owner.get("kind") != "Node" and not owner.get("controller")]
    metadata = {**current["metadata"], "ownerReferences": [*others, _owner(node)]}
    return {**current, "apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _render_delete(one: Json) -> DeleteSlice:
    metadata = one["metadata"]
    return DeleteSlice(
        name=metadata["name"], uid=metadata.get("uid", ""), resource_version=metadata.get("resourceVersion", "")
    )


def _owner(node: NodeRef) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True}


def _owners(one: Json) -> list[Json]:
    # The server and other writers may spell out false booleans; they mean the same as absent ones.
    owners = one["metadata"].get("ownerReferences") or ()
    return [{key: value for key, value in owner.items() if value} for owner in owners]


def _collect_taint_times(slices: Iterable[Json]) -> dict[TaintKey, str]:
    """When each taint was added; a device may have moved to another slice meanwhile."""
    times: dict[TaintKey, str] = {}
    for one in sorted(slices, key=_generation):
        for device, taint in _list_taints(one["spec"]):
            if added := taint.get("timeAdded"):
                times[_taint_key(device, taint)] = added
    return times


def _keep_taint_times(device: Json, times: Mapping[TaintKey, str]) -> Json:
    if not device.get("taints"):
        return device
    taints = []
    for taint in device["taints"]:
        added = times.get(_taint_key(device["name"], taint))
        taints.append({**taint, "timeAdded": added} if added else taint)
    return {**device, "taints": taints}


def _taint_key(device: str, taint: Json) -> TaintKey:
    return device, taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")


def _list_taints(spec: Json) -> list[tuple[str, Json]]:
    return [
        (device.get("name", ""), taint) for device in spec.get("devices") or () for taint in device.get("taints") or ()
    ]


def _consumes(spec: Json) -> bool:
    return any(device.get("consumesCounters") for device in spec.get("devices") or ())


def _canonical_device(device: Json) -> Json:
    consumed = [{**one, "counters": _canonical_values(one)} for one in device.get("consumesCounters") or ()]
    taints = [{name: value for name, value in one.items() if name != "timeAdded"} for one in device.get("taints") or ()]
    capacity = {name: _canonical_value(one) for name, one in (device.get("capacity") or {}).items()}
    return _drop_empty({**device, "consumesCounters": consumed, "taints": taints, "capacity": capacity})


def _canonical_values(counters_holder: Json) -> Json:
    return {name: _canonical_value(one) for name, one in (counters_holder.get("counters") or {}).items()}


def _canonical_value(one: Json) -> Json:
    return {**one, "value": parse_quantity(one.get("value", "0"))}


def _drop_empty(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _name(one: Json) -> str:
    return str(one["metadata"].get("name", ""))


def _index(one: Json) -> int | None:
    match = _INDEX.match(_name(one))
    return int(match[1], 16) if match else None


def _pool_name(one: Json) -> str:
    return str(one.get("spec", {}).get("pool", {}).get("name", ""))


def _generation(one: Json) -> int:
    return int(one.get("spec", {}).get("pool", {}).get("generation", 0))
