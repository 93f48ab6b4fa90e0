"""AdmissionReview of admission.k8s.io/v1: what the API server asks of a webhook, and what it is answered.

The API server has validated the object (resource.k8s.io/v1) before; what is not of its type all the same is a
DocumentError, and the review no review.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

from tesela.core.config_fit import Ask, Fit, PlacedConfig
from tesela.core.errors import DocumentError
from tesela.core.model import DRIVER_NAME
from tesela.edge.documents.config import decode_config
from tesela.edge.documents.fields import ApiObject, check_type, get_field, get_field_or, list_field

_T = TypeVar("_T")
REVIEW_VERSION: Final = "admission.k8s.io/v1"
GROUP_VERSION: Final = ("resource.k8s.io", "v1")
DEVICE_CLASS: Final = "DeviceClass"
_PATHS: Final = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    DEVICE_CLASS: ("spec",),
}
_LONGEST_WARNING: Final = 256
"""As the API server keeps of one; all of them together may have 4096."""
_MOST_WARNINGS: Final = 8
_MOST_PROBLEMS: Final = 8
_MOST_ENTRIES: Final = 64
"""Of a list. The API allows 32 at most: more comes from somebody who is not the API server, and costs its square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One object that somebody creates or changes, as much of it as concerns configs.

    `problems` are configs for this driver that it does not understand, with their paths; `configs` the others.
    `selectors` are a DeviceClass's own, `asks` a claim's or template's.
    """

    uid: str
    kind: str
    name: str
    problems: tuple[str, ...] = ()
    configs: tuple[PlacedConfig, ...] = ()
    asks: tuple[Ask, ...] = ()
    selectors: tuple[str, ...] = ()


def parse_review(body: bytes) -> Review:
    """DocumentError: it is no review of a ResourceClaim, ResourceClaimTemplate or DeviceClass of resource.k8s.io/v1."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DocumentError("", f"is not JSON: {error}") from error
    document = check_type(document, dict, "")
    if document.get("apiVersion") != REVIEW_VERSION or document.get("kind") != "AdmissionReview":
        raise DocumentError("apiVersion", f"must be an AdmissionReview of {REVIEW_VERSION}")
    request = get_field(document, "request", dict, at="")
    uid = get_field(request, "uid", str, at="request")
    obj = get_field_or(request, "object", dict, None, at="request")
    kind = get_field(request, "kind", dict, at="request")
    group_version = (kind.get("group"), kind.get("version"))
    if group_version != GROUP_VERSION or kind.get("kind") not in _PATHS:
        raise DocumentError("request.kind", f"must be one of {', '.join(_PATHS)} of {'/'.join(GROUP_VERSION)}")
    name = "/".join(part for part in (request.get("namespace"), request.get("name")) if isinstance(part, str) and part)
    if obj is None:  # a deletion
        return Review(uid=uid, kind=kind["kind"], name=name)
    return _parse_object(obj, uid=uid, kind=kind["kind"], name=name)


def _parse_object(obj: ApiObject, *, uid: str, kind: str, name: str) -> Review:
    at, spec = "", obj
    for field in _PATHS[kind]:
        spec = get_field_or(spec, field, dict, {}, at=at)
        at = f"{at}.{field}" if at else field
    problems: list[str] = []
    configs = []
    for path, entry, opaque in _list_opaque(spec, at=at):
        parameters = get_field(opaque, "parameters", dict, at=f"{path}.opaque")
        try:
            config = decode_config(parameters)
        except DocumentError as error:
            problems.append(f"{path}.opaque.parameters.{error}")
        else:
            requests = tuple(_list_few(entry, "requests", str, at=path))
            configs.append(PlacedConfig(path=path, config=config, requests=requests))
    is_class = kind == DEVICE_CLASS
    return Review(
        uid=uid,
        kind=kind,
        name=name,
        problems=tuple(problems),
        configs=tuple(configs),
        asks=() if is_class else tuple(_list_asks(spec, at=at)),
        selectors=_list_selectors(spec, at=at) if is_class else (),
    )


def parse_class(document: ApiObject) -> tuple[str, tuple[str, ...]]:
    """A DeviceClass's name and selectors. DocumentError: it is none."""
    metadata = get_field(document, "metadata", dict, at="")
    spec = get_field_or(document, "spec", dict, {}, at="")
    return get_field(metadata, "name", str, at="metadata"), _list_selectors(spec, at="spec")


def render_answer(uid: str, fit: Fit) -> bytes:
    """Allowed where `fit` has no problem; else they are the message, as many as somebody would read at once."""
    response: dict[str, Any] = {"uid": uid, "allowed": not fit.problems}
    if fit.warnings:
        shown = fit.warnings[:_MOST_WARNINGS]
        response["warnings"] = [
            text if len(text) <= _LONGEST_WARNING else f"{text[: _LONGEST_WARNING - 3]}..." for text in shown
        ]
    if fit.problems:
        shown = fit.problems[:_MOST_PROBLEMS]
        more = ("and more",) if len(fit.problems) > len(shown) else ()
        response["status"] = {
            "code": HTTPStatus.UNPROCESSABLE_ENTITY.value,
            "reason": "Invalid",
            "message": "; ".join((*shown, *more)),
        }
    return json.dumps({"apiVersion": REVIEW_VERSION, "kind": "AdmissionReview", "response": response}).encode()


def _list_opaque(spec: ApiObject, *, at: str) -> Iterator[tuple[str, ApiObject, ApiObject]]:
    for index, entry in enumerate(_list_few(spec, "config", dict, at=at)):
        path = f"{at}.config[{index}]"
        opaque = get_field_or(entry, "opaque", dict, {}, at=path)
        if opaque.get("driver") == DRIVER_NAME:
            yield path, entry, opaque


def _list_asks(spec: ApiObject, *, at: str) -> Iterator[Ask]:
    for index, request in enumerate(_list_few(spec, "requests", dict, at=at)):
        path = f"{at}.requests[{index}]"
        name = get_field(request, "name", str, at=path)
        exactly = get_field_or(request, "exactly", dict, None, at=path)
        if exactly is not None:
            yield _parse_ask(name, exactly, at=f"{path}.exactly")
        for number, alternative in enumerate(_list_few(request, "firstAvailable", dict, at=path)):
            here = f"{path}.firstAvailable[{number}]"
            yield _parse_ask(f"{name}/{get_field(alternative, 'name', str, at=here)}", alternative, at=here)


def _parse_ask(name: str, demand: ApiObject, *, at: str) -> Ask:
    class_name = get_field_or(demand, "deviceClassName", str, "", at=at)
    return Ask(name=name, class_name=class_name, selectors=_list_selectors(demand, at=at))


def _list_selectors(spec: ApiObject, *, at: str) -> tuple[str, ...]:
    """Texts of the CEL selectors; one of another kind, which may come, leaves nothing out that we could tell."""
    selectors = _list_few(spec, "selectors", dict, at=at)
    cels = (get_field_or(one, "cel", dict, {}, at=f"{at}.selectors[{index}]") for index, one in enumerate(selectors))
    return tuple(text for cel in cels if isinstance(text := cel.get("expression"), str))


def _list_few(obj: ApiObject, field: str, kind: type[_T], *, at: str) -> Sequence[_T]:
    entries = list_field(obj, field, kind, at=at)
    if len(entries) > _MOST_ENTRIES:
        raise DocumentError(f"{at}.{field}", f"must have {_MOST_ENTRIES} entries at most, not {len(entries)}")
    return entries
