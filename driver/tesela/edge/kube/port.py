"""The Kubernetes port: generic verbs over JSON objects, for the few resources that Tesela reads and writes.

Objects are plain JSON dictionaries, because typed clients drop fields that they do not know and a driver must never
write back less than it read. Two backends: the official client and `EmbeddedCluster`, held equal by one contract suite.

Every verb raises a leaf of `ApiError`; none waits longer than the timeout it was built with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of API object."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version


NODES = Resource("", "v1", "nodes", "Node", False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
PODS = Resource("", "v1", "pods", "Pod", True)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True)
RESOURCE_CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)
DEVICE_TAINT_RULES = Resource("resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectList:
    """A consistent list and the resource version to watch from."""

    items: tuple[Json, ...]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One change. BOOKMARK carries only metadata.resourceVersion."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Json


class Kube(Protocol):
    """The API server as Tesela uses it."""

    def get_server_version(self) -> str:
        """`gitVersion` of /version, as in `v1.37.2`."""
        ...

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """One object, read from the quorum. ApiNotFound."""
        ...

    def list(self, resource: Resource, namespace: str | None = None, field_selector: str | None = None) -> ObjectList:
        """All objects (of a namespace) that match `field_selector`, pages followed."""
        ...

    def create(self, resource: Resource, obj: Json) -> Json:
        """Creates `obj` (namespace from its metadata) and returns what the server kept. ApiConflict if it exists."""
        ...

    def replace(self, resource: Resource, obj: Json) -> Json:
        """Replaces the object; metadata.resourceVersion must be the current one, else ApiConflict."""
        ...

    def replace_status(self, resource: Resource, obj: Json) -> Json:
        """Replaces the status subresource only."""
        ...

    def apply_status(self, resource: Resource, obj: Json, *, field_manager: str) -> Json:
        """Server-side apply of `obj`'s status (KEP-555), forced; returns the whole object.

        `field_manager` then owns exactly the fields that `obj` names: those that it named before and does not now are
        removed unless somebody else owns them too; fields of others stay. `obj` names itself and may name its
        metadata.uid: another object of that name is refused (ApiError 422). ApiNotFound. Nothing is written where
        nothing changes.
        """
        ...

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
        """Deletes under the given preconditions. ApiNotFound, ApiConflict.

        `grace_period_s`: None leaves it to the object (30 s for a bound pod), 0 removes a pod without its kubelet.
        """
        ...

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        field_selector: str | None = None,
        *,
        resource_version: str,
        timeout_s: float,
    ) -> Iterator[WatchEvent]:
        """Changes after `resource_version`, until `timeout_s` is over or the server closes. ApiGone: list again."""
        ...
