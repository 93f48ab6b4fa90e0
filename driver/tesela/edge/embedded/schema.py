"""Decoding JSON as the API server does: unknown fields, empty lists and empty maps vanish, a wrong type is 400.

A schema is data: leaves, lists, maps and structs. What a value must mean is the validators' business, not this file's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeAlias

from tesela.core.errors import DocumentError
from tesela.core.quantity import parse_quantity

MAX_INT64 = 2**63 - 1
QUANTITY_TEXT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class Leaf(Enum):
    """A scalar, or JSON that the API keeps as it is (RAW: opaque parameters, node selectors)."""

    STRING = "string"
    OMITTED_STRING = "string, dropped when empty"
    INT = "int64"
    BOOL = "bool"
    QUANTITY = "quantity"
    VALUE = "quantity, 0 when missing"
    TIME = "RFC 3339 time, kept to the second"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A JSON array."""

    item: Schema


@dataclass(frozen=True, slots=True)
class MapOf:
    """A JSON object with free keys."""

    value: Schema


@dataclass(frozen=True, slots=True)
class Struct:
    """A JSON object with known fields."""

    fields: Mapping[str, Schema]


Schema: TypeAlias = "Leaf | ListOf | MapOf | Struct"


class DecodeError(ValueError):
    """The value has the wrong JSON type for its field."""


def decode(schema: Schema, value: Any, path: str) -> Any:
    """A new value that holds what the API server would have kept of `value`. DecodeError names the field."""
    match schema:
        case Leaf():
            return _leaf(schema, value, path)
        case ListOf(item):
            if not isinstance(value, list):
                raise DecodeError(f"cannot unmarshal {_json_type(value)} into field {path} of type list")
            return [decode(item, entry, path) for entry in value]
        case MapOf(item):
            return {key: decode(item, entry, path) for key, entry in _object(value, path).items()}
        case Struct(fields):
            return _struct(fields, _object(value, path), path)


def _struct(fields: Mapping[str, Schema], value: dict[str, Any], path: str) -> dict[str, Any]:
    kept = {}
    for name, schema in fields.items():
        if (entry := value.get(name)) is None:
            if schema is Leaf.VALUE:
                kept[name] = "0"
            continue
        decoded = decode(schema, entry, f"{path}.{name}" if path else name)
        empty = decoded in ([], {}) if isinstance(schema, ListOf | MapOf) else False
        if empty or (schema is Leaf.OMITTED_STRING and not decoded):
            continue
        kept[name] = decoded
    return kept


def _leaf(leaf: Leaf, value: Any, path: str) -> Any:
    if leaf is Leaf.RAW:
        return value
    if leaf in {Leaf.QUANTITY, Leaf.VALUE}:
        return _quantity(value)
    if leaf is Leaf.TIME:
        return _time(value)
    wanted = {Leaf.INT: int, Leaf.BOOL: bool}.get(leaf, str)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise DecodeError(f"cannot unmarshal {_json_type(value)} into field {path} of type {leaf.value}")
    if isinstance(value, int) and not -MAX_INT64 - 1 <= value <= MAX_INT64:
        raise DecodeError(f"cannot unmarshal number {value} into field {path} of type {leaf.value}")
    return value


def _quantity(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DecodeError(QUANTITY_TEXT)
    try:
        return str(parse_quantity(str(value).strip()))
    except DocumentError as error:
        raise DecodeError(QUANTITY_TEXT) from error


def _time(value: Any) -> str:
    try:
        parsed = datetime.fromisoformat(value).astimezone(UTC)
    except (TypeError, ValueError) as error:
        raise DecodeError(f'parsing time "{value}"') from error
    return parsed.strftime("%Y-%m-%dT%H:%M:%SZ")


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DecodeError(f"cannot unmarshal {_json_type(value)} into field {path} of type object")
    return value


def _json_type(value: Any) -> str:
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
