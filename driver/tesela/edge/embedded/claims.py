"""ResourceClaims, their templates and DeviceClasses as the API server keeps them.

Rules: pkg/apis/resource/validation and pkg/registry/resource/resourceclaim of Kubernetes 1.37, compared by the contract
suite with the real server. An expression that uses what our CEL lacks is let through: the allocator answers for it.
"""

from __future__ import annotations

import json
from typing import Any

from tesela.core.selector.compile import compile_selector
from tesela.core.selector.outcome import CompileError
from tesela.edge.embedded.device_status import check_device_status
from tesela.edge.embedded.gates import Features
from tesela.edge.embedded.problems import Problems
from tesela.edge.embedded.schema import Leaf, ListOf, MapOf, Schema, Struct
from tesela.edge.embedded.slices import MAX_DRIVER_NAME
from tesela.edge.kube.port import Json

MAX_ENTRIES = 32
MAX_SUBREQUESTS = 8
MAX_RESERVATIONS = 256
MAX_CEL_BYTES = 10 * 1024
MAX_PARAMETERS_BYTES = 10 * 1024
MODES = ("All", "ExactCount")
OPERATORS = ("Equal", "Exists")
EFFECTS = ("NoExecute", "NoSchedule", "None")
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
ADMIN_REFUSAL = f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
REQUEST_NAME = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"

_S, _I, _B, _Q = Leaf.STRING, Leaf.INT, Leaf.BOOL, Leaf.QUANTITY
_SELECTORS = ListOf(Struct({"cel": Struct({"expression": _S})}))
_TOLERATION = Struct(
    {"key": Leaf.OMITTED_STRING, "operator": _S, "value": Leaf.OMITTED_STRING, "effect": Leaf.OMITTED_STRING}
    | {"tolerationSeconds": _I}
)
_CONDITION = Struct(
    {"type": _S, "status": _S, "observedGeneration": _I, "lastTransitionTime": Leaf.TIME, "reason": _S, "message": _S}
)
_DEVICE_STATUS: dict[str, Schema] = {
    "driver": _S,
    "pool": _S,
    "device": _S,
    "shareID": _S,
    "conditions": ListOf(_CONDITION),
    "data": Leaf.RAW,
    "networkData": Leaf.RAW,
}
_CAPACITY = Struct({"requests": MapOf(_Q)})
_COMMON: dict[str, Schema] = {
    "deviceClassName": _S,
    "selectors": _SELECTORS,
    "allocationMode": Leaf.OMITTED_STRING,
    "count": _I,
    "tolerations": ListOf(_TOLERATION),
    "capacity": _CAPACITY,
}
_OPAQUE = Struct({"driver": _S, "parameters": Leaf.RAW})
CLAIM_SPEC: Schema = Struct(
    {
        "devices": Struct(
            {
                "requests": ListOf(
                    Struct(
                        {
                            "name": _S,
                            "exactly": Struct({**_COMMON, "adminAccess": _B}),
                            "firstAvailable": ListOf(Struct({"name": _S, **_COMMON})),
                        }
                    )
                ),
                "constraints": ListOf(Struct({"requests": ListOf(_S), "matchAttribute": _S, "distinctAttribute": _S})),
                "config": ListOf(Struct({"requests": ListOf(_S), "opaque": _OPAQUE})),
            }
        )
    }
)
TEMPLATE_SPEC: Schema = Struct({"metadata": Leaf.RAW, "spec": CLAIM_SPEC})
CLASS_SPEC: Schema = Struct(
    {"selectors": _SELECTORS, "config": ListOf(Struct({"opaque": _OPAQUE})), "extendedResourceName": _S}
)
_RESULT = Struct(
    {
        "request": _S,
        "driver": _S,
        "pool": _S,
        "device": _S,
        "adminAccess": _B,
        "tolerations": ListOf(_TOLERATION),
        "bindingConditions": ListOf(_S),
        "bindingFailureConditions": ListOf(_S),
        "shareID": _S,
        "consumedCapacity": MapOf(_Q),
    }
)
CLAIM_STATUS: Schema = Struct(
    {
        "allocation": Struct(
            {
                "devices": Struct(
                    {
                        "results": ListOf(_RESULT),
                        "config": ListOf(Struct({"source": _S, "requests": ListOf(_S), "opaque": _OPAQUE})),
                    }
                ),
                "nodeSelector": Leaf.RAW,
                "allocationTimestamp": Leaf.TIME,
            }
        ),
        "reservedFor": ListOf(Struct({"apiGroup": Leaf.OMITTED_STRING, "resource": _S, "name": _S, "uid": _S})),
        "devices": ListOf(Struct(_DEVICE_STATUS)),
    }
)


def drop_gated_claim(spec: Json, features: Features) -> None:
    """Removes the fields of a claim's spec that closed gates hide."""
    for request in spec.get("devices", {}).get("requests", []):
        if not features.enabled("DRAPrioritizedList"):
            request.pop("firstAvailable", None)
        exactly = request.get("exactly", {})
        if not features.enabled("DRAAdminAccess"):
            exactly.pop("adminAccess", None)
        for asked in (exactly, *request.get("firstAvailable", [])):
            if not features.enabled("DRADeviceTaints"):
                asked.pop("tolerations", None)
            if not features.enabled("DRAConsumableCapacity"):
                asked.pop("capacity", None)


def default_claim(spec: Json) -> None:
    """Sets allocationMode, count and the operator of tolerations where they are missing."""
    for request in spec.get("devices", {}).get("requests", []):
        for asked in (*filter(None, [request.get("exactly")]), *request.get("firstAvailable", [])):
            if not asked.get("allocationMode"):
                asked["allocationMode"] = "ExactCount"
            if asked["allocationMode"] == "ExactCount" and not asked.get("count"):
                asked["count"] = 1
            for toleration in asked.get("tolerations", []):
                toleration.setdefault("operator", "Equal")


def check_claim(spec: Json, path: str, problems: Problems, *, admin_allowed: bool) -> None:
    """Notes everything that the API server would refuse in a claim's spec (422); `path` is `spec` or a template's."""
    devices = spec.get("devices", {})
    requests = devices.get("requests", [])
    problems.too_many(f"{path}.devices.requests", len(requests), MAX_ENTRIES)
    names: set[str] = set()
    for index, request in enumerate(requests):
        where = f"{path}.devices.requests[{index}]"
        if request.get("name") in names:
            problems.duplicate(where, json.dumps(request))
        names |= _check_request(request, where, problems, admin_allowed=admin_allowed)
    constraints = devices.get("constraints", [])
    problems.too_many(f"{path}.devices.constraints", len(constraints), MAX_ENTRIES)
    for index, constraint in enumerate(constraints):
        _check_constraint(constraint, names, f"{path}.devices.constraints[{index}]", problems)
    _check_config(devices.get("config", []), names, f"{path}.devices.config", problems)


def _check_request(request: Json, path: str, problems: Problems, *, admin_allowed: bool) -> set[str]:
    """The names by which constraints and config may refer to this request."""
    name = request.get("name", "")
    problems.dns_label(f"{path}.name", name)
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable", [])
    if exactly is None and not alternatives:
        problems.required(path, "exactly one of `exactly` or `firstAvailable` is required")
    if exactly is not None and alternatives:
        text = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
        problems.invalid(path, None, text)
    if exactly is not None:
        _check_asked(exactly, f"{path}.exactly", problems)
        if exactly.get("adminAccess") and not admin_allowed:
            problems.forbidden(f"{path}.adminAccess", ADMIN_REFUSAL)
    problems.too_many(f"{path}.firstAvailable", len(alternatives), MAX_SUBREQUESTS)
    names = {name}
    for index, alternative in enumerate(alternatives):
        where = f"{path}.firstAvailable[{index}]"
        problems.dns_label(f"{where}.name", alternative.get("name", ""))
        full = f"{name}/{alternative.get('name')}"
        if full in names:
            problems.duplicate(where, json.dumps(alternative))
        names.add(full)
        _check_asked(alternative, where, problems)
    return names


def _check_asked(asked: Json, path: str, problems: Problems) -> None:
    problems.dns_subdomain(f"{path}.deviceClassName", asked.get("deviceClassName", ""))
    check_selectors(asked.get("selectors", []), f"{path}.selectors", problems)
    mode, count = asked.get("allocationMode"), asked.get("count", 0)
    if mode not in MODES:
        problems.unsupported(f"{path}.allocationMode", str(mode), MODES)
    elif mode == "All" and count:
        problems.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount" and count <= 0:
        problems.invalid(f"{path}.count", count, "must be greater than zero")
    for index, toleration in enumerate(asked.get("tolerations", [])):
        _check_toleration(toleration, f"{path}.tolerations[{index}]", problems)


def _check_toleration(toleration: Json, path: str, problems: Problems) -> None:
    if toleration.get("key"):
        problems.label_key(f"{path}.key", toleration["key"])
    operator = toleration.get("operator")
    if operator not in OPERATORS:
        problems.unsupported(f"{path}.operator", str(operator), OPERATORS)
    elif operator == "Exists" and toleration.get("value"):
        problems.invalid(f"{path}.value", toleration["value"], "must be empty for operator `Exists`")
    elif operator == "Equal" and not toleration.get("key"):
        problems.required(f"{path}.key", "must not be empty for operator `Equal`")
    effect = toleration.get("effect")
    if effect and effect not in EFFECTS:
        problems.unsupported(f"{path}.effect", effect, EFFECTS)


def check_selectors(selectors: list[Json], path: str, problems: Problems) -> None:
    """Notes selectors without CEL text, with more than 10 KiB of it, or that do not compile to a bool."""
    problems.too_many(path, len(selectors), MAX_ENTRIES)
    for index, selector in enumerate(selectors):
        if "cel" not in selector:
            problems.required(f"{path}[{index}].cel")
            continue
        expression = selector["cel"].get("expression", "")
        if len(expression.encode()) > MAX_CEL_BYTES:
            problems.too_long(f"{path}[{index}].cel.expression", MAX_CEL_BYTES)
        elif isinstance(refusal := compile_selector(expression), CompileError):
            problems.invalid(f"{path}[{index}].cel.expression", expression, refusal.text)


def _check_constraint(constraint: Json, names: set[str], path: str, problems: Problems) -> None:
    _check_names(constraint.get("requests", []), names, f"{path}.requests", problems)
    given = [field for field in ("matchAttribute", "distinctAttribute") if field in constraint]
    if len(given) != 1:
        text = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        problems.required(path, text)
    for field in given:
        problems.fully_qualified_name(f"{path}.{field}", constraint[field])


def _check_names(references: list[str], names: set[str], path: str, problems: Problems) -> None:
    problems.too_many(path, len(references), MAX_ENTRIES)
    for index, reference in enumerate(references):
        if reference not in names:
            problems.invalid(f"{path}[{index}]", reference, REQUEST_NAME)


def _check_config(config: list[Json], names: set[str], path: str, problems: Problems) -> None:
    problems.too_many(path, len(config), MAX_ENTRIES)
    for index, entry in enumerate(config):
        _check_names(entry.get("requests", []), names, f"{path}[{index}].requests", problems)
        _check_opaque(entry.get("opaque"), f"{path}[{index}].opaque", problems)


def _check_opaque(opaque: Any, path: str, problems: Problems) -> None:
    if opaque is None:
        problems.required(path)
        return
    problems.dns_subdomain(f"{path}.driver", opaque.get("driver", ""), MAX_DRIVER_NAME)
    parameters = opaque.get("parameters")
    if parameters is None:
        problems.required(f"{path}.parameters")
    elif len(json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode()) > MAX_PARAMETERS_BYTES:
        problems.too_long(f"{path}.parameters", MAX_PARAMETERS_BYTES)
    elif not isinstance(parameters, dict):
        problems.invalid(f"{path}.parameters", "<value omitted>", "must be a valid JSON object")


def check_class(spec: Json, problems: Problems) -> None:
    """Notes everything that the API server would refuse in a DeviceClass (422)."""
    check_selectors(spec.get("selectors", []), "spec.selectors", problems)
    problems.too_many("spec.config", len(spec.get("config", [])), MAX_ENTRIES)
    for index, entry in enumerate(spec.get("config", [])):
        _check_opaque(entry.get("opaque"), f"spec.config[{index}].opaque", problems)


def check_claim_status(claim: Json, old: Json, problems: Problems) -> None:
    """Notes what the API server would refuse in a claim's new status: allocation is set once, reservations need it."""
    status, before = claim.get("status", {}), old.get("status", {})
    allocation, reserved = status.get("allocation"), status.get("reservedFor", [])
    problems.too_many("status.reservedFor", len(reserved), MAX_RESERVATIONS)
    seen = set()
    for index, reference in enumerate(reserved):
        if reference.get("uid") in seen:
            problems.duplicate(f"status.reservedFor[{index}]", json.dumps(reference))
        seen.add(reference.get("uid"))
        for field in ("resource", "name", "uid"):
            if not reference.get(field):
                problems.required(f"status.reservedFor[{index}].{field}")
    if allocation is None and reserved:
        problems.forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    added = seen - {reference.get("uid") for reference in before.get("reservedFor", [])}
    if added and old["metadata"].get("deletionTimestamp"):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        problems.forbidden("status.reservedFor", text)
    if allocation is not None and before.get("allocation") not in (None, allocation):
        problems.invalid("status.allocation", None, "field cannot be modified once set")
    if allocation is not None:
        _check_allocation(allocation, claim["spec"], problems)
    check_device_status(status, allocation or {}, problems)


def _check_allocation(allocation: Json, spec: Json, problems: Problems) -> None:
    names = set()
    for request in spec.get("devices", {}).get("requests", []):
        alternatives = request.get("firstAvailable", [])
        names |= {f"{request['name']}/{entry['name']}" for entry in alternatives} or {request["name"]}
    results = allocation.get("devices", {}).get("results", [])
    problems.too_many("status.allocation.devices.results", len(results), MAX_ENTRIES)
    for index, result in enumerate(results):
        path = f"status.allocation.devices.results[{index}]"
        if result.get("request") not in names:
            problems.invalid(f"{path}.request", result.get("request"), REQUEST_NAME)
        problems.dns_subdomain(f"{path}.driver", result.get("driver", ""), MAX_DRIVER_NAME)
        problems.dns_label(f"{path}.device", result.get("device", ""))
