"""Garbage collection: which objects no longer have any of their owners. Pure over a store; deletes nothing."""

from __future__ import annotations

from tesela.edge.embedded.store import Key, Store
from tesela.edge.kube.port import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)

KNOWN_KINDS = {
    resource.kind
    for resource in (
        NODES,
        NAMESPACES,
        PODS,
        RESOURCE_SLICES,
        RESOURCE_CLAIMS,
        RESOURCE_CLAIM_TEMPLATES,
        DEVICE_CLASSES,
        DEVICE_TAINT_RULES,
    )
}


def find_orphans(store: Store) -> tuple[Key, ...]:
    """Keys of objects all of whose owners are gone. An owner of a kind that is not stored counts as present."""
    objects = {key: obj for key in store.all_keys() if (obj := store.read(key)) is not None}
    living = {obj["metadata"]["uid"] for obj in objects.values()}
    return tuple(
        key
        for key, obj in objects.items()
        if (owners := obj["metadata"].get("ownerReferences"))
        and not obj["metadata"].get("deletionTimestamp")
        and all(owner.get("kind") in KNOWN_KINDS and owner.get("uid") not in living for owner in owners)
    )
