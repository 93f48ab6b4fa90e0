"""URL paths of the Kubernetes API and the names in them, shared by the client and by the embedded cluster's server.

Pure text: nothing here may open a connection or know a kind's fields.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import quote

from tesela.core.errors import ApiError
from tesela.edge.kube.port import Json, Resource

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def name_request(method: str, path: str, query: Collection[str]) -> tuple[str, str]:
    """Verb and resource of a request in RBAC's words, as `update`, `resourceclaims/status`; `query` is its keys.

    What lies outside the resources is named by its first word, as `get`, `version`.
    """
    words = path.strip("/").split("/")
    scoped = {"api": words[2:], "apis": words[3:]}.get(words[0], [])
    if not scoped:
        return method.lower(), words[0]
    if scoped[0] == "namespaces" and len(scoped) > 2:
        scoped = scoped[2:]
    plural, name, subresource = (*scoped, "", "")[:3]
    read = "watch" if "watch" in query else "get" if name else "list"
    return _VERBS.get(method, read), f"{plural}/{subresource}" if subresource else plural


def collection_path(resource: Resource, namespace: str | None) -> str:
    """Path of a collection; of all namespaces when `namespace` is None. Ignored for kinds without namespaces."""
    root = f"/apis/{resource.group}" if resource.group else "/api"
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace and resource.namespaced else ""
    return f"{root}/{resource.version}{scope}/{resource.plural}"


def object_path(resource: Resource, name: str, namespace: str | None, subresource: str = "") -> str:
    """Path of one object or of its `subresource`. ApiError 400 where a namespaced kind comes without a namespace."""
    if not name:
        raise ApiError(400, "BadRequest", f"{resource.kind}: metadata.name is empty")
    if resource.namespaced and not namespace:
        raise ApiError(400, "BadRequest", f"{resource.kind} {name}: metadata.namespace is missing")
    tail = f"/{subresource}" if subresource else ""
    return f"{collection_path(resource, namespace)}/{quote(name, safe='')}{tail}"


def namespace_of(resource: Resource, obj: Json) -> str | None:
    """`metadata.namespace` of an object about to be written. ApiError 400 where its kind needs one and has none."""
    if not resource.namespaced:
        return None
    metadata = obj.get("metadata") or {}
    namespace = metadata.get("namespace")
    if not namespace:
        name = metadata.get("name") or metadata.get("generateName") or "?"
        raise ApiError(400, "BadRequest", f"{resource.kind} {name}: metadata.namespace is missing")
    return str(namespace)
