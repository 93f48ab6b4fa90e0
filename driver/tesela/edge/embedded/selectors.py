"""Field selectors: the few fields that the API server indexes for each kind, everything else is 400.

Rules: pkg/registry of Kubernetes 1.37, seen on the real server: ResourceSlices know neither metadata.namespace nor a
spec field beyond node, driver and (since 1.37) pool name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tesela.core.errors import ApiError
from tesela.edge.embedded.gates import SELECTS_POOL_NAME_SINCE
from tesela.edge.kube.port import NODES, PODS, RESOURCE_SLICES, Json, Resource

Predicate: TypeAlias = Callable[[Json], bool]

FIELDS = {
    PODS.plural: (
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.nominatedNodeName",
    ),
    NODES.plural: ("metadata.name", "spec.unschedulable"),
    RESOURCE_SLICES.plural: ("metadata.name", "spec.nodeName", "spec.driver", "spec.pool.name"),
}
DEFAULT_FIELDS = ("metadata.name", "metadata.namespace")


def parse_field_selector(resource: Resource, text: str | None, minor: int) -> Predicate:
    """A predicate for `a=b,c!=d`. ApiError 400 names a field that the server would not know."""
    terms = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        field, operator, value = _parse_term(part, text or "")
        _check_known(resource, field, minor)
        terms.append((field.split("."), operator, value))

    def matches(obj: Json) -> bool:
        return all((_lookup(obj, path) == value) == (operator == "=") for path, operator, value in terms)

    return matches


def _parse_term(part: str, text: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        field, found, value = part.partition(operator)
        if found:
            return field.strip(), "!=" if operator == "!=" else "=", value.strip()
    raise ApiError(400, "BadRequest", f"invalid selector: '{text}'; can't understand '{part}'")


def _check_known(resource: Resource, field: str, minor: int) -> None:
    known = FIELDS.get(resource.plural)
    if known is None:
        if field not in DEFAULT_FIELDS:
            names = ", ".join(f'"{name}"' for name in DEFAULT_FIELDS)
            raise ApiError(400, "BadRequest", f'"{field}" is not a known field selector: only {names}')
    elif field not in known or (field == "spec.pool.name" and minor < SELECTS_POOL_NAME_SINCE):
        where = f" for {resource.api_version}, Kind={resource.kind}" if resource == RESOURCE_SLICES else ""
        raise ApiError(400, "BadRequest", f"field label not supported{where}: {field}")


def _lookup(obj: Json, path: list[str]) -> str:
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
