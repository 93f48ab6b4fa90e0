"""Objects, versions and their history, in memory: what etcd and the watch cache are to an API server.

Knows keys and resource versions, no kind and no rule. A stored object is never changed, only replaced, so readers need
no lock for what they hold; what leaves the process's store to a caller is a copy.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Condition
from time import monotonic
from typing import Literal, TypeAlias, cast

from tesela.core.errors import ApiGone
from tesela.edge.kube.port import Json, Resource

Key: TypeAlias = tuple[str, str, str]
HISTORY_SIZE = 1000


def key_of(resource: Resource, name: str, namespace: str | None) -> Key:
    """The place of an object; cluster-scoped kinds have no namespace whatever the caller says."""
    return (resource.plural, (namespace or "") if resource.namespaced else "", name)


def copy_json(obj: Json) -> Json:
    """A deep copy through JSON, which also refuses what is not JSON."""
    return cast("Json", json.loads(json.dumps(obj)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write. `before` is None for a creation, `after` for a removal; `obj` is what its event shows."""

    version: int
    key: Key
    before: Json | None
    after: Json | None
    obj: Json

    def seen_through(self, selected: bool, was_selected: bool) -> Literal["ADDED", "MODIFIED", "DELETED"] | None:
        """The event for a watcher to whom the object is (was) visible; None where it never saw it."""
        if selected:
            return "MODIFIED" if was_selected else "ADDED"
        return "DELETED" if was_selected else None


class Store:
    """One counter of versions for all kinds, the current objects, and the last changes."""

    def __init__(self, history_size: int) -> None:
        self.changed = Condition()
        self.version = 1
        self.closed = False
        self._objects: dict[Key, Json] = {}
        self._history: deque[Change] = deque(maxlen=history_size)
        self._forgotten = 0

    def read(self, key: Key) -> Json | None:
        """The stored object itself: not to be changed."""
        return self._objects.get(key)

    def items(self, plural: str, namespace: str | None = None) -> Iterator[Json]:
        """The stored objects of a kind in the order of their names."""
        for key in sorted(self._objects):
            if key[0] == plural and (namespace is None or key[1] == namespace):
                yield self._objects[key]

    def newest_version(self, after: int, timeout_s: float, stop: Callable[[], bool]) -> int:
        """The version now, waiting at most `timeout_s` for one above `after`, or for `stop` and a `wake`."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > after or stop(), timeout_s)
            return self.version

    def wake(self) -> None:
        """Lets everybody who waits look at their conditions."""
        with self.changed:
            self.changed.notify_all()

    def all_keys(self) -> tuple[Key, ...]:
        """Every key, in order of first creation."""
        return tuple(self._objects)

    def write(self, key: Key, obj: Json) -> Json:
        """Stores `obj` under the next version, which it gets as its resourceVersion."""
        with self.changed:
            before = self._objects.get(key)
            self.version += 1
            obj["metadata"]["resourceVersion"] = str(self.version)
            self._objects[key] = obj
            self._note(Change(version=self.version, key=key, before=before, after=obj, obj=obj))
            return obj

    def remove(self, key: Key, last: Json) -> None:
        """Removes the object; watchers see `last` under the version of the removal."""
        with self.changed:
            before = self._objects.pop(key)
            self.version += 1
            shown = {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
            self._note(Change(version=self.version, key=key, before=before, after=None, obj=shown))

    def forget_history(self) -> None:
        """Compacts: a watch from before this moment is too old."""
        with self.changed:
            self._history.clear()
            self._forgotten = self.version
            self.changed.notify_all()

    def wait_for_changes(self, after: int, deadline: float) -> list[Change]:
        """Changes after version `after`, waiting for one until `deadline` (monotonic). ApiGone: forgotten already."""
        with self.changed:
            while True:
                if after < self._forgotten:
                    raise ApiGone(410, "Expired", f"too old resource version: {after} ({self._forgotten})")
                if changes := self._after(after):
                    return changes
                left = deadline - monotonic()
                if left <= 0 or self.closed:
                    return []
                self.changed.wait(left)

    def close(self) -> None:
        """Ends every wait."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _after(self, version: int) -> list[Change]:
        newer: list[Change] = []
        for change in reversed(self._history):
            if change.version <= version:
                break
            newer.append(change)
        return newer[::-1]

    def _note(self, change: Change) -> None:
        if len(self._history) == self._history.maxlen:
            self._forgotten = self._history[0].version
        self._history.append(change)
        self.changed.notify_all()
