"""What each kind does on its way into the store: decode, drop, default, check. One entry per kind, chosen by plural.

The steps are the API server's strategies (pkg/registry); the verbs around them are `cluster.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tesela.core.errors import ApiError
from tesela.edge.embedded import claims, events, pods, slices, taint_rules
from tesela.edge.embedded.gates import Features
from tesela.edge.embedded.problems import Problems
from tesela.edge.embedded.schema import DecodeError, Schema, decode
from tesela.edge.kube.port import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Json,
    Resource,
)

KINDS = (
    *(NODES, NAMESPACES, PODS, EVENTS),
    *(RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, DEVICE_TAINT_RULES),
)
WITH_STATUS = frozenset(
    {NODES.plural, NAMESPACES.plural, PODS.plural, RESOURCE_CLAIMS.plural, DEVICE_TAINT_RULES.plural}
)
WITH_GENERATION = frozenset({PODS.plural, RESOURCE_SLICES.plural, DEVICE_CLASSES.plural, DEVICE_TAINT_RULES.plural})
SPEC_SCHEMAS: dict[str, Schema] = {
    RESOURCE_SLICES.plural: slices.SLICE_SPEC,
    RESOURCE_CLAIMS.plural: claims.CLAIM_SPEC,
    RESOURCE_CLAIM_TEMPLATES.plural: claims.TEMPLATE_SPEC,
    DEVICE_CLASSES.plural: claims.CLASS_SPEC,
    DEVICE_TAINT_RULES.plural: taint_rules.RULE_SPEC,
}
SPEC_CHECKS: dict[str, Callable[[Any, Problems], None]] = {
    DEVICE_CLASSES.plural: claims.check_class,
    DEVICE_TAINT_RULES.plural: taint_rules.check_rule,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a decision about one write needs beside the object."""

    features: Features
    now: str
    admin_allowed: bool


def decode_object(resource: Resource, obj: Json) -> Json:
    """`obj` with what the server would keep of it. ApiError 400 on a wrong kind or JSON type."""
    kind, api_version = obj.get("kind") or resource.kind, obj.get("apiVersion") or resource.api_version
    if (kind, api_version) != (resource.kind, resource.api_version):
        raise _bad_request(resource, f"it says kind {kind} of {api_version}")
    kept: Json = {"apiVersion": resource.api_version, "kind": resource.kind}
    kept |= {key: value for key, value in obj.items() if key in {"metadata", "spec", "status"}}
    try:
        if resource == EVENTS:
            kept |= decode(events.EVENT, obj, "")
            return kept
        if schema := SPEC_SCHEMAS.get(resource.plural):
            kept["spec"] = decode(schema, obj.get("spec") or {}, "spec")
        if resource == RESOURCE_SLICES:
            _keep_empty_lists(obj.get("spec") or {}, kept["spec"])
        if resource == RESOURCE_CLAIMS:
            kept["status"] = decode(claims.CLAIM_STATUS, obj.get("status") or {}, "status")
        elif resource == DEVICE_TAINT_RULES:
            kept["status"] = decode(taint_rules.RULE_STATUS, obj.get("status") or {}, "status")
        elif resource == DEVICE_CLASSES or resource.plural not in WITH_STATUS:
            kept.pop("status", None)
    except DecodeError as error:
        raise _bad_request(resource, f"json: {error}") from error
    return kept


def _keep_empty_lists(spec: Json, kept: Json) -> None:
    """Keeps an empty list of counters or devices beside the other: the server refuses the pair by presence."""
    fields = ("devices", "sharedCounters")
    if all(spec.get(field) is not None for field in fields):
        for field in fields:
            kept.setdefault(field, [])


def _bad_request(resource: Resource, detail: str) -> ApiError:
    where = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    return ApiError(400, "BadRequest", f"{where}: {detail}")


def prepare(resource: Resource, obj: Json, old: Json | None, context: Context) -> None:
    """Drops, defaults and resets fields of `obj` before it is checked; `old` is None on create."""
    if resource == EVENTS:
        return
    spec = obj.setdefault("spec", {})
    match resource.plural:
        case RESOURCE_SLICES.plural:
            before = old["spec"] if old else None
            slices.drop_gated(spec, before, context.features)
            slices.default_taints(spec, context.now)
        case RESOURCE_CLAIMS.plural:
            _prepare_claim(spec, context)
        case RESOURCE_CLAIM_TEMPLATES.plural:
            _prepare_claim(spec.setdefault("spec", {}), context)
        case DEVICE_TAINT_RULES.plural:
            taint_rules.default_rule(spec, old["spec"] if old else None, context.now)
        case PODS.plural if old is None:
            pods.default_pod(obj)
        case NAMESPACES.plural if old is None:
            obj["status"] = {"phase": "Active"}
            spec["finalizers"] = ["kubernetes"]
            obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name")
        case _:
            pass  # the other kinds are kept as they came
    if old is None and resource in {RESOURCE_CLAIMS, DEVICE_TAINT_RULES}:
        obj["status"] = {}
    if old is not None and resource.plural in WITH_STATUS:
        obj["status"] = old.get("status", {})


def _prepare_claim(spec: Json, context: Context) -> None:
    claims.drop_gated_claim(spec, context.features)
    claims.default_claim(spec)


def check(resource: Resource, obj: Json, old: Json | None, context: Context) -> None:
    """ApiError 422 with every problem of the object, as the API server would list them."""
    problems = Problems()
    spec: Any = obj.get("spec", {})
    _check_name(resource, obj, problems)
    if old is not None:
        _check_finalizers(obj, old, problems)
    if resource == EVENTS:
        events.check_event(obj, old, problems)
    else:
        _check_spec(resource, spec, old, context, problems)
    raise_invalid(resource, obj, problems)


def _check_spec(resource: Resource, spec: Any, old: Json | None, context: Context, problems: Problems) -> None:
    match resource.plural:
        case RESOURCE_SLICES.plural:
            slices.check_slice(spec, old["spec"] if old else None, context.features, problems)
        case RESOURCE_CLAIMS.plural | RESOURCE_CLAIM_TEMPLATES.plural if old is not None:
            if spec != old["spec"]:
                problems.invalid("spec", None, "field is immutable")
        case RESOURCE_CLAIMS.plural:
            claims.check_claim(spec, "spec", problems, admin_allowed=context.admin_allowed)
        case RESOURCE_CLAIM_TEMPLATES.plural:
            claims.check_claim(spec["spec"], "spec.spec", problems, admin_allowed=context.admin_allowed)
        case DEVICE_CLASSES.plural | DEVICE_TAINT_RULES.plural:
            SPEC_CHECKS[resource.plural](spec, problems)
        case PODS.plural if old is not None:
            pods.check_pod_update(spec, old["spec"], problems)
        case PODS.plural:
            pods.check_pod(spec, problems)
        case _:
            pass  # nodes and namespaces: the name is all that is checked


def check_status(resource: Resource, obj: Json, old: Json) -> None:
    """ApiError 422 with every problem of the object's new status."""
    problems = Problems()
    if resource == RESOURCE_CLAIMS:
        claims.check_claim_status(obj, old, problems)
    elif resource == DEVICE_TAINT_RULES:
        taint_rules.check_rule_status(obj.get("status", {}), problems)
    raise_invalid(resource, obj, problems)


def refuse_uid(resource: Resource, old: Json, uid: str) -> NoReturn:
    """ApiError 422 for an apply to another object of the same name."""
    problems = Problems()
    problems.invalid("metadata.uid", uid, "field is immutable")
    raise_invalid(resource, old, problems)
    raise AssertionError(uid)


def raise_invalid(resource: Resource, obj: Json, problems: Problems) -> None:
    """Raises ApiError 422 if there is a problem."""
    if not problems.found:
        return
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    found = problems.found[0] if len(problems.found) == 1 else "[" + ", ".join(problems.found) + "]"
    raise ApiError(422, "Invalid", f'{kind} "{obj["metadata"].get("name", "")}" is invalid: {found}')


def _check_name(resource: Resource, obj: Json, problems: Problems) -> None:
    name = obj["metadata"].get("name", "")
    if not name:
        problems.required("metadata.name", "name or generateName is required")
    elif resource == NAMESPACES:
        problems.dns_label("metadata.name", name)
    else:
        problems.dns_subdomain("metadata.name", name)


def _check_finalizers(obj: Json, old: Json, problems: Problems) -> None:
    if not old["metadata"].get("deletionTimestamp"):
        return
    added = [
        name for name in obj["metadata"].get("finalizers", []) if name not in old["metadata"].get("finalizers", [])
    ]
    if added:
        text = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
        problems.forbidden("metadata.finalizers", text)
