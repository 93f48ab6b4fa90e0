"""Events of events.k8s.io/v1: their fields, and what the API server refuses (pkg/apis/core/validation/events.go)."""

from __future__ import annotations

from typing import Final

from tesela.edge.embedded.problems import Problems
from tesela.edge.embedded.schema import Leaf, Schema, Struct
from tesela.edge.kube.port import Json

MAX_NOTE_BYTES = 1024
MAX_NAME = 128
TYPES = ("Normal", "Warning")
CLUSTER_NAMESPACES = ("default", "kube-system")
"""Where events about objects without namespace have to be."""

_REFERENCE = Struct(
    dict.fromkeys(
        ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath"), Leaf.OMITTED_STRING
    )
)
EVENT: Final[Schema] = Struct(
    {
        "eventTime": Leaf.STRING,
        "series": Struct({"count": Leaf.INT, "lastObservedTime": Leaf.STRING}),
        "reportingController": Leaf.OMITTED_STRING,
        "reportingInstance": Leaf.OMITTED_STRING,
        "action": Leaf.OMITTED_STRING,
        "reason": Leaf.OMITTED_STRING,
        "regarding": _REFERENCE,
        "related": _REFERENCE,
        "note": Leaf.OMITTED_STRING,
        "type": Leaf.OMITTED_STRING,
    }
)
_NAMES = {"reportingInstance": MAX_NAME, "action": MAX_NAME, "reason": MAX_NAME}
IMMUTABLE: Final = ("eventTime", "regarding", "related", "note", "type", "reportingController", *_NAMES)


def check_event(event: Json, old: Json | None, problems: Problems) -> None:
    """Notes everything that the API server would refuse in an Event; of an old one only its series may change."""
    _check_regarding(event, problems)
    for field in ("eventTime", "reportingController", *_NAMES):
        if not event.get(field):
            problems.required(field)
    for field, limit in _NAMES.items():
        if len(event.get(field, "")) > limit:
            problems.invalid(field, "", f"can have at most {limit} characters")
    if event.get("reportingController"):
        problems.label_key("reportingController", event["reportingController"])
    if len(event.get("note", "").encode()) > MAX_NOTE_BYTES:
        problems.invalid("message", "", f"can have at most {MAX_NOTE_BYTES} characters")
    if event.get("type") not in TYPES:
        problems.invalid("type", "", f"has invalid value: {event.get('type', '')}")
    _check_series(event, problems)
    for field in IMMUTABLE if old is not None else ():
        if event.get(field) != (old or {}).get(field):
            problems.invalid(field, None, "field is immutable")


def _check_series(event: Json, problems: Problems) -> None:
    series = event.get("series")
    if series is not None and series.get("count", 0) < 2:
        problems.invalid("series.count", "", "should be at least 2")
    if series is not None and not series.get("lastObservedTime"):
        problems.required("series.lastObservedTime")


def _check_regarding(event: Json, problems: Problems) -> None:
    namespace, regarding = event["metadata"].get("namespace"), event.get("regarding", {})
    if not regarding.get("namespace") and namespace not in CLUSTER_NAMESPACES:
        problems.invalid("involvedObject.namespace", "", "does not match event.namespace")
    elif regarding.get("namespace") and regarding["namespace"] != namespace:
        problems.invalid("involvedObject.namespace", regarding["namespace"], "does not match event.namespace")
