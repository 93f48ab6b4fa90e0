"""Checks of a claim's `status.devices`, as the API server words them (KEP-4817, pkg/apis/resource/validation)."""

from __future__ import annotations

import json
import re
from typing import Any

from tesela.edge.embedded.problems import Problems
from tesela.edge.kube.port import Json

MAX_CONDITIONS = 8
MAX_DATA_BYTES = 10 * 1024
MAX_MESSAGE = 32768
STATUSES = ("False", "True", "Unknown")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_KEY = ("driver", "pool", "device", "shareID")


def check_device_status(status: Json, allocation: Json, problems: Problems) -> None:
    """Notes entries that are not allocated, that stand twice, and conditions and data that are not valid."""
    allocated = {_key_of(result) for result in allocation.get("devices", {}).get("results", [])}
    seen: set[tuple[Any, ...]] = set()
    for index, entry in enumerate(status.get("devices", [])):
        path, key = f"status.devices[{index}]", _key_of(entry)
        shown = json.dumps(dict(zip(("Driver", "Pool", "Device", "ShareID"), key, strict=True)))
        if key in seen:
            problems.duplicate(path, shown)
        seen.add(key)
        if key not in allocated:
            problems.invalid(path, shown, "must be an allocated device in the claim")
        conditions = entry.get("conditions") or []
        problems.too_many(f"{path}.conditions", len(conditions), MAX_CONDITIONS)
        kinds: set[str] = set()
        for number, condition in enumerate(conditions):
            here = f"{path}.conditions[{number}]"
            if condition.get("type") in kinds:
                problems.duplicate(f"{here}.type", condition["type"])
            kinds.add(condition.get("type", ""))
            _check_condition(condition, here, problems)
        _check_data(entry.get("data"), f"{path}.data", problems)


def show_conditions(status: Json) -> None:
    """The API shows an entry's conditions as null where it has none: the field is never left out."""
    for entry in status.get("devices", []):
        entry.setdefault("conditions", None)


def _key_of(entry: Json) -> tuple[Any, ...]:
    return tuple(entry.get(field) for field in _KEY)


def _check_condition(condition: Json, path: str, problems: Problems) -> None:
    if not condition.get("type"):
        problems.required(f"{path}.type")
    else:
        problems.label_key(f"{path}.type", condition["type"])
    if condition.get("status") not in STATUSES:
        problems.unsupported(f"{path}.status", str(condition.get("status", "")), STATUSES)
    if not condition.get("lastTransitionTime"):
        problems.required(f"{path}.lastTransitionTime")
    reason = condition.get("reason", "")
    if not reason:
        problems.required(f"{path}.reason")
    elif not _REASON.fullmatch(reason):
        problems.invalid(f"{path}.reason", reason, "a condition reason must start with alphabetic character")
    if len(condition.get("message", "")) > MAX_MESSAGE:
        problems.too_long(f"{path}.message", MAX_MESSAGE)


def _check_data(data: Any, path: str, problems: Problems) -> None:
    if data is None:
        return
    if len(json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()) > MAX_DATA_BYTES:
        problems.too_long(path, MAX_DATA_BYTES)
    elif not isinstance(data, dict):
        problems.invalid(path, "<value omitted>", "must be a valid JSON object")
