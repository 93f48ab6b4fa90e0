"""Server-side apply, as far as a claim's status goes: who owns which field, and what an apply leaves of the others.

Rules: KEP-555 and sigs.k8s.io/structured-merge-diff. A status is flattened into leaf paths, so that owning, merging and
giving up are set operations. Which lists are merged by key, and by which, is a fact of the API's types
(`+listType=map`); every other list, and what the API keeps raw, is one leaf. Applies are forced, as the port's are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tesela.edge.kube.port import RESOURCE_CLAIMS, Json, Resource

Path: TypeAlias = tuple[str, ...]
"""Steps to a leaf, spelled as in FieldsV1: `f:name` is a field, `k:{...}` an item of a keyed list."""
Manager: TypeAlias = tuple[str, str]
"""Name and operation: one name may both apply and update."""

APPLY: Final = "Apply"
UPDATE: Final = "Update"
UPDATER: Final = (UPDATE, "tesela")
"""Who replaces: a server takes the name from the User-Agent, and here is no other."""
_ITEM: Final = "an item of a keyed list"


@dataclass(frozen=True, slots=True)
class Granular:
    """An object that is owned field by field. Fields that are not named here are leaves."""

    fields: Mapping[str, Granular | Keyed]


@dataclass(frozen=True, slots=True)
class Keyed:
    """A list whose items are told apart by these fields; one that an item lacks is no part of its key."""

    keys: tuple[str, ...]
    item: Granular


_LEAVES: Final = Granular({})
_CLAIM_STATUS: Final = Granular(
    {
        "allocation": Granular({"devices": _LEAVES}),
        "reservedFor": Keyed(("uid",), _LEAVES),
        "devices": Keyed(
            ("driver", "device", "pool", "shareID"),
            Granular({"conditions": Keyed(("type",), _LEAVES), "networkData": _LEAVES}),
        ),
    }
)
SCHEMAS: Final[Mapping[Resource, Granular]] = {RESOURCE_CLAIMS: _CLAIM_STATUS}
"""The statuses that can be applied here."""


def apply_status(resource: Resource, old: Json, given: Json, manager: str, now: str) -> tuple[Json, list[Json]]:
    """The status and the managedFields after `manager` applied `given` to the object `old`.

    What it applied before and does not name any more goes, unless somebody else owns it too.
    """
    schema = SCHEMAS[resource]
    live, applied = dict(_flatten(schema, old.get("status", {}))), dict(_flatten(schema, given))
    owners = _read_owners(old, live)
    mine = (APPLY, manager)
    others = frozenset().union(*(paths for owner, paths in owners.items() if owner != mine))
    given_up = owners.get(mine, frozenset()) - applied.keys() - others
    merged = {path: value for path, value in (live | applied).items() if path not in given_up}
    owners = _disown(owners, _list_changed(live, merged)) | {mine: frozenset(applied)}
    return _build(merged), _render_owners(owners, old, now)


def replace_owners(resource: Resource, old: Json, status: Json, now: str) -> list[Json]:
    """The managedFields after a replacement of `old`'s status: who changes a field owns it alone."""
    schema = SCHEMAS[resource]
    live, written = dict(_flatten(schema, old.get("status", {}))), dict(_flatten(schema, status))
    changed = _list_changed(live, written)
    owners = _disown(_read_owners(old, live), changed)
    owners[UPDATER] = owners.get(UPDATER, frozenset()) | (changed & written.keys())
    return _render_owners(owners, old, now)


def _flatten(schema: Granular | Keyed | None, value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    match schema:
        case Granular(fields) if isinstance(value, dict) and (value or not path):
            for name, entry in value.items():
                if entry is None:
                    continue  # nobody owns what is not there
                yield from _flatten(fields.get(name), entry, (*path, f"f:{name}"))
        case Keyed(keys, item) if isinstance(value, list) and value:
            for entry in value:
                key = {name: entry[name] for name in sorted(keys) if name in entry}
                here = (*path, f"k:{json.dumps(key, separators=(',', ':'))}")
                yield here, _ITEM
                yield from _flatten(item, entry, here)
        case _:
            yield path, value


def _build(leaves: Mapping[Path, Any]) -> Json:
    """The reverse of `_flatten`; items stand in the order in which their first leaf does."""
    root: Json = {}
    for path, value in leaves.items():
        node = root
        for step in path[:-1] if value != _ITEM else path:
            node = node.setdefault(step, {})
        if value != _ITEM:
            node[path[-1]] = _Leaf(value)
    built = _unwrap(root)
    return built if isinstance(built, dict) else {}


@dataclass(frozen=True, slots=True)
class _Leaf:
    value: Any


def _unwrap(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if any(step.startswith("k:") for step in node):
        return [_unwrap(child) for child in node.values()]
    return {step.removeprefix("f:"): _unwrap(child) for step, child in node.items()}


def _list_changed(before: Mapping[Path, Any], after: Mapping[Path, Any]) -> frozenset[Path]:
    """Paths that came, went, or have another value."""
    missing = object()
    return frozenset(
        path for path in before.keys() | after.keys() if before.get(path, missing) != after.get(path, missing)
    )


def _disown(owners: Mapping[Manager, frozenset[Path]], changed: frozenset[Path]) -> dict[Manager, frozenset[Path]]:
    return {owner: paths - changed for owner, paths in owners.items()}


def _read_owners(obj: Json, live: Mapping[Path, Any]) -> dict[Manager, frozenset[Path]]:
    """Of an object that nobody applied to yet, everything belongs to those who replaced its status."""
    entries = obj["metadata"].get("managedFields")
    if entries is None:
        return {UPDATER: frozenset(live)}
    return {
        (entry["operation"], entry["manager"]): frozenset(_read_fields(entry["fieldsV1"].get("f:status", {})))
        for entry in entries
    }


def _read_fields(node: Json, path: Path = ()) -> Iterator[Path]:
    """A path is owned where its node is empty or holds a dot."""
    if path and (not node or "." in node):
        yield path
    for step, child in node.items():
        if step != ".":
            yield from _read_fields(child, (*path, step))


def _render_owners(owners: Mapping[Manager, frozenset[Path]], old: Json, now: str) -> list[Json]:
    """Who owns nothing any more is left out; an entry that did not change keeps its time."""
    known = {(entry["operation"], entry["manager"]): entry for entry in old["metadata"].get("managedFields", [])}
    entries = []
    for owner, paths in sorted(owners.items()):
        if not paths:
            continue
        fields = {"f:status": _render_fields(paths)}
        before = known.get(owner)
        if before is not None and before["fieldsV1"] == fields:
            entries.append(before)
            continue
        operation, manager = owner
        entries.append(
            {"manager": manager, "operation": operation, "apiVersion": old["apiVersion"], "time": now}
            | {"fieldsType": "FieldsV1", "fieldsV1": fields, "subresource": "status"}
        )
    return entries


def _render_fields(paths: frozenset[Path]) -> Json:
    root: Json = {}
    for path in sorted(paths):
        node = root
        for step in path:
            node = node.setdefault(step, {})
        node["."] = {}
    return _without_lonely_dots(root)


def _without_lonely_dots(node: Json) -> Json:
    if node.keys() == {"."}:
        return {}
    return {step: child if step == "." else _without_lonely_dots(child) for step, child in node.items()}
