"""Attribute values as selectors and constraints see them: a value and which member of DeviceAttribute held it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AttributeKind(Enum):
    """The member of DeviceAttribute that is set; values of different kinds never compare equal.

    NONE is a value of some future kind that nothing can use.
    """

    INT = "int"
    BOOL = "bool"
    STRING = "string"
    VERSION = "version"
    INTS = "ints"
    BOOLS = "bools"
    STRINGS = "strings"
    VERSIONS = "versions"
    NONE = "none"


SCALAR_KINDS = frozenset({AttributeKind.INT, AttributeKind.BOOL, AttributeKind.STRING, AttributeKind.VERSION})


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute value of a device."""

    kind: AttributeKind
    value: int | bool | str | tuple[int | bool | str, ...]
