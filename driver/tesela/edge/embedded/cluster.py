"""`EmbeddedCluster`: the API server's behaviour in memory, as far as Tesela's port reaches.

The contract suite holds it equal to a real API server. Beyond the port it has what only other components of a cluster
may do: `bind` (the scheduler's verb), garbage collection of owned objects, and `forget_history` for tests.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import NoReturn

from tesela.core.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from tesela.edge.embedded.apply import SCHEMAS, apply_status, replace_owners
from tesela.edge.embedded.claims import ADMIN_LABEL
from tesela.edge.embedded.device_status import show_conditions
from tesela.edge.embedded.gates import plan_features
from tesela.edge.embedded.kinds import (
    KINDS,
    WITH_GENERATION,
    WITH_STATUS,
    Context,
    check,
    check_status,
    decode_object,
    prepare,
    refuse_uid,
)
from tesela.edge.embedded.owners import find_orphans
from tesela.edge.embedded.pods import GRACE_PERIOD_S
from tesela.edge.embedded.selectors import Predicate, parse_field_selector
from tesela.edge.embedded.store import HISTORY_SIZE, Key, Store, copy_json, key_of
from tesela.edge.kube.paths import namespace_of, object_path
from tesela.edge.kube.port import (
    DEVICE_TAINT_RULES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    Json,
    ObjectList,
    Resource,
    WatchEvent,
)

SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
MAX_GENERATED_BASE = 58
SYSTEM_METADATA = (
    *("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"),
    "managedFields",  # of objects that somebody applied to; of others everybody knows whose their fields are
)
BY_PLURAL = {resource.plural: resource for resource in KINDS}
RESETS_METADATA = {RESOURCE_CLAIMS, DEVICE_TAINT_RULES}
FIRST_NAMESPACES = ("default", "kube-system")


class EmbeddedCluster:
    """`Kube` in memory. Safe for many threads; `close` ends every watch.

    `gates` replaces the open feature gates of `server_version`; with `frozenset()` counters and taints are dropped, as
    a server does. `history_size` is how many changes a watch can look back.
    """

    def __init__(
        self,
        *,
        server_version: str = "v1.37.2",
        gates: frozenset[str] | None = None,
        history_size: int = HISTORY_SIZE,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._server_version = server_version
        self._features = plan_features(server_version, gates)
        self._store = Store(history_size)
        self._now = now
        for name in FIRST_NAMESPACES:
            self.create(NAMESPACES, {"metadata": {"name": name}})

    def close(self) -> None:
        """Ends every running watch; later watches end at once."""
        self._store.close()

    def get_server_version(self) -> str:
        return self._server_version

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        object_path(resource, name, namespace)  # refuses what has no URL
        return copy_json(self._read(resource, name, namespace))

    def list(self, resource: Resource, namespace: str | None = None, field_selector: str | None = None) -> ObjectList:
        matches = self._selector(resource, namespace, field_selector)
        with self._store.changed:
            found = tuple(obj for obj in self._store.items(resource.plural) if matches(obj))
            version = str(self._store.version)
        return ObjectList(items=tuple(copy_json(obj) for obj in found), resource_version=version)

    def create(self, resource: Resource, obj: Json) -> Json:
        namespace = namespace_of(resource, obj)
        new = decode_object(resource, copy_json(obj))
        metadata = new.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise ApiUnavailable(500, "", "resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(5))
            metadata["name"] = metadata["generateName"][:MAX_GENERATED_BASE] + suffix
        with self._store.changed:
            self._require_namespace(resource, namespace, metadata.get("name", ""))
            for field in SYSTEM_METADATA:
                metadata.pop(field, None)
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": self._timestamp()}
            if resource.plural in WITH_GENERATION:
                metadata["generation"] = 1
            context = self._context(namespace)
            prepare(resource, new, None, context)
            check(resource, new, None, context)
            key = key_of(resource, metadata["name"], namespace)
            if self._store.read(key) is not None:
                raise ApiConflict(409, "AlreadyExists", f'{_path_name(resource)} "{metadata["name"]}" already exists')
            created = self._store.write(key, new)
            if metadata.get("ownerReferences"):
                self._delete_all(find_orphans(self._store))
            return copy_json(created)

    def replace(self, resource: Resource, obj: Json) -> Json:
        new = decode_object(resource, copy_json(obj))
        namespace = namespace_of(resource, obj)
        with self._store.changed:
            old = self._read_for_update(resource, new, namespace)
            _keep_system_metadata(new, old)
            context = self._context(namespace)
            prepare(resource, new, old, context)
            check(resource, new, old, context)
            if resource.plural in WITH_GENERATION and new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"]["generation"] + 1
            return self._commit(resource, new, old)

    def replace_status(self, resource: Resource, obj: Json) -> Json:
        if resource.plural not in WITH_STATUS:
            raise ApiNotFound(404, "NotFound", "the server could not find the requested resource")
        new = decode_object(resource, copy_json(obj))
        with self._store.changed:
            old = self._read_for_update(resource, new, namespace_of(resource, obj))
            # a claim's or a rule's status strategy resets all metadata, a pod's keeps labels and annotations
            metadata = {**old["metadata"]} if resource in RESETS_METADATA else {**new["metadata"]}
            candidate = {**old, "metadata": metadata, "status": new.get("status", {})}
            _keep_system_metadata(candidate, old)
            if resource == PODS:
                candidate["metadata"].pop("ownerReferences", None)
                _carry(candidate["metadata"], old["metadata"], ("ownerReferences",))
            check_status(resource, candidate, old)
            show_conditions(candidate["status"])
            if "managedFields" in old["metadata"]:
                owners = replace_owners(resource, old, candidate["status"], self._timestamp())
                candidate["metadata"]["managedFields"] = owners
            return self._commit(resource, candidate, old)

    def apply_status(self, resource: Resource, obj: Json, *, field_manager: str) -> Json:
        if resource.plural not in WITH_STATUS:
            raise ApiNotFound(404, "NotFound", "the server could not find the requested resource")
        if resource not in SCHEMAS:
            text = f"the embedded cluster applies no status of {_path_name(resource)}"
            raise ApiError(415, "UnsupportedMediaType", text)
        if not field_manager:
            raise ApiError(400, "BadRequest", "fieldManager is required for apply patch")
        given = decode_object(resource, copy_json(obj))
        uid = given.setdefault("metadata", {}).pop("uid", None)
        with self._store.changed:
            old = self._read_for_update(resource, given, namespace_of(resource, obj))
            if uid not in {None, old["metadata"]["uid"]}:
                refuse_uid(resource, old, uid)
            status, owners = apply_status(resource, old, given["status"], field_manager, self._timestamp())
            metadata = {**old["metadata"], "managedFields": owners}
            candidate = {**old, "metadata": metadata, "status": status}
            check_status(resource, candidate, old)
            show_conditions(status)
            return self._commit(resource, candidate, old)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        object_path(resource, name, namespace)
        with self._store.changed:
            old = self._read(resource, name, namespace)
            metadata = old["metadata"]
            for label, wanted, found in (
                ("UID", uid, metadata["uid"]),
                ("ResourceVersion", resource_version, metadata["resourceVersion"]),
            ):
                if wanted is not None and wanted != found:
                    text = f"the {label} in the precondition ({wanted}) does not match the {label} in record ({found})"
                    raise ApiConflict(409, "Conflict", f'Operation cannot be fulfilled on "{name}": {text}')
            grace_s = self._grace(resource, old, grace_period_s)
            if grace_s == 0 and not metadata.get("finalizers"):
                self._remove(resource, old)
            else:
                self._mark_deleted(resource, old, grace_s)

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        field_selector: str | None = None,
        *,
        resource_version: str,
        timeout_s: float,
    ) -> Iterator[WatchEvent]:
        matches = self._selector(resource, namespace, field_selector)
        deadline = monotonic() + timeout_s
        version = int(resource_version or 0)
        if version == 0:
            current = self.list(resource, namespace, field_selector)
            version = int(current.resource_version)
            for obj in current.items:
                yield WatchEvent(type="ADDED", object=obj)
        while changes := self._store.wait_for_changes(version, deadline):
            for change in changes:
                version = change.version
                if change.key[0] != resource.plural:
                    continue
                was = change.before is not None and matches(change.before)
                kind = change.seen_through(change.after is not None and matches(change.after), was)
                if kind:
                    yield WatchEvent(type=kind, object=copy_json(change.obj))
        bookmark = {"kind": resource.kind, "apiVersion": resource.api_version}
        yield WatchEvent(type="BOOKMARK", object={**bookmark, "metadata": {"resourceVersion": str(version)}})

    def bind(self, pod: Json, node_name: str) -> None:
        """Assigns `pod` to a node, as POST pods/NAME/binding does. ApiConflict if it has one or is another pod."""
        metadata = pod["metadata"]
        with self._store.changed:
            old = self._read(PODS, metadata["name"], metadata["namespace"])
            if old["metadata"]["uid"] != metadata["uid"] or old["spec"].get("nodeName"):
                text = f'Operation cannot be fulfilled on pods/binding "{metadata["name"]}": it is assigned already'
                raise ApiConflict(409, "Conflict", text)
            status = {**old["status"], "conditions": [_condition("PodScheduled", "True", self._timestamp())]}
            spec = {**old["spec"], "nodeName": node_name}
            self._store.write(_key(old, PODS), {**old, "metadata": {**old["metadata"]}, "spec": spec, "status": status})

    def peek(self, resource: Resource) -> tuple[Json, ...]:
        """The stored objects themselves, oldest first: fast, for components that only read. Not to be changed."""
        with self._store.changed:
            keys = [key for key in self._store.all_keys() if key[0] == resource.plural]
            return tuple(obj for key in keys if (obj := self._store.read(key)) is not None)

    def wait_for_change(self, after: int, timeout_s: float, stop: Callable[[], bool] = lambda: False) -> int:
        """The cluster's version now; waits at most `timeout_s` for one above `after`. `wake` has `stop` asked again."""
        return self._store.newest_version(after, timeout_s, stop)

    def wake(self) -> None:
        """Has every `wait_for_change` ask its `stop`."""
        self._store.wake()

    def timestamp(self) -> str:
        """Now, as objects show times."""
        return self._timestamp()

    def forget_history(self) -> None:
        """What a compaction does: every watch from an earlier resource version ends with ApiGone."""
        self._store.forget_history()

    def _timestamp(self, after_s: float = 0) -> str:
        return (self._now() + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _selector(self, resource: Resource, namespace: str | None, field_selector: str | None) -> Predicate:
        fields = parse_field_selector(resource, field_selector, self._features.minor)
        if not namespace or not resource.namespaced:
            return fields
        return lambda obj: obj["metadata"].get("namespace") == namespace and fields(obj)

    def _context(self, namespace: str | None) -> Context:
        space = self._store.read(key_of(NAMESPACES, namespace, None)) if namespace else None
        labels = space["metadata"].get("labels", {}) if space else {}
        return Context(features=self._features, now=self._timestamp(), admin_allowed=labels.get(ADMIN_LABEL) == "true")

    def _read(self, resource: Resource, name: str, namespace: str | None) -> Json:
        if (obj := self._store.read(key_of(resource, name, namespace))) is None:
            raise ApiNotFound(404, "NotFound", f'{_path_name(resource)} "{name}" not found')
        return obj

    def _read_for_update(self, resource: Resource, new: Json, namespace: str | None) -> Json:
        metadata = new.setdefault("metadata", {})
        object_path(resource, metadata.get("name", ""), namespace)
        old = self._read(resource, metadata["name"], namespace)
        if metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            _conflict(resource, metadata["name"], "Precondition failed: UID in precondition does not match")
        if metadata.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
            text = "the object has been modified; please apply your changes to the latest version and try again"
            _conflict(resource, metadata["name"], text)
        return old

    def _require_namespace(self, resource: Resource, namespace: str | None, name: str) -> None:
        if not namespace:
            return
        if self._read(NAMESPACES, namespace, None)["metadata"].get("deletionTimestamp"):
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise ApiError(403, "Forbidden", f'{_path_name(resource)} "{name}" is forbidden: {text}')

    def _commit(self, resource: Resource, new: Json, old: Json) -> Json:
        """Writes `new` unless nothing changed; the last finalizer's going completes a deletion."""
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        metadata = new["metadata"]
        if metadata.get("finalizers") == []:
            del metadata["finalizers"]
        if new == old:
            return copy_json(old)
        waits_for_kubelet = metadata.get("deletionGracePeriodSeconds", 0) > 0
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not waits_for_kubelet:
            self._remove(resource, new)
            return copy_json(new)
        return copy_json(self._store.write(_key(new, resource), new))

    def _grace(self, resource: Resource, old: Json, asked_s: int | None) -> int:
        if resource != PODS or not old["spec"].get("nodeName"):
            return 0
        if old["status"].get("phase") in {"Succeeded", "Failed"}:
            return 0
        default_s = int(old["spec"].get("terminationGracePeriodSeconds", GRACE_PERIOD_S))
        return default_s if asked_s is None else asked_s

    def _mark_deleted(self, resource: Resource, old: Json, grace_s: int) -> None:
        before = old["metadata"]
        if before.get("deletionTimestamp") and before.get("deletionGracePeriodSeconds", 0) <= grace_s:
            return
        metadata = {**before, "deletionGracePeriodSeconds": grace_s, "deletionTimestamp": self._timestamp(grace_s)}
        if "generation" in before and not before.get("deletionTimestamp"):
            metadata["generation"] = before["generation"] + 1
        self._store.write(_key(old, resource), {**old, "metadata": metadata})

    def _remove(self, resource: Resource, last: Json) -> None:
        self._store.remove(_key(last, resource), last)
        if resource == NAMESPACES:
            self._delete_all(key for key in self._store.all_keys() if key[1] == last["metadata"]["name"])
        self._delete_all(find_orphans(self._store))

    def _delete_all(self, keys: Iterable[Key]) -> None:
        """Deletes what is left of `keys`; one deletion may have taken others with it."""
        for key in keys:
            plural, namespace, name = key
            if self._store.read(key) is not None:
                self.delete(BY_PLURAL[plural], name, namespace or None)


def _path_name(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _key(obj: Json, resource: Resource) -> Key:
    return key_of(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))


def _keep_system_metadata(new: Json, old: Json) -> None:
    for field in SYSTEM_METADATA:
        new["metadata"].pop(field, None)
    _carry(new["metadata"], old["metadata"], (*SYSTEM_METADATA, "generateName"))


def _carry(metadata: Json, before: Json, fields: tuple[str, ...]) -> None:
    metadata |= {field: before[field] for field in fields if field in before}


def _condition(kind: str, status: str, now: str) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": now}


def _conflict(resource: Resource, name: str, text: str) -> NoReturn:
    where = f'Operation cannot be fulfilled on {_path_name(resource)} "{name}"'
    raise ApiConflict(409, "Conflict", f"{where}: {text}")
