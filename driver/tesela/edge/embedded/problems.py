"""Field problems as the API server words them, and the small format rules that several kinds share.

Rules: k8s.io/apimachinery pkg/util/validation; each function notes problems, none raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tesela.core.dns import DNS_LABEL, DNS_SUBDOMAIN, MAX_SUBDOMAIN

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
LABEL_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# semver.org's own expression, 2.0.0
SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_LOWER = "lower case alphanumeric characters"


class Problems:
    """What is wrong with one object, as `field: kind: detail`."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def invalid(self, path: str, value: Any, detail: str) -> None:
        shown = "null" if value is None else json.dumps(value)
        self.found.append(f"{path}: Invalid value: {shown}: {detail}")

    def required(self, path: str, detail: str = "") -> None:
        self.found.append(f"{path}: Required value{': ' if detail else ''}{detail}")

    def forbidden(self, path: str, detail: str) -> None:
        self.found.append(f"{path}: Forbidden: {detail}")

    def too_many(self, path: str, count: int, limit: int) -> None:
        if count > limit:
            self.found.append(f"{path}: Too many: {count}: must have at most {limit} items")

    def too_long(self, path: str, limit: int) -> None:
        self.found.append(f"{path}: Too long: may not be more than {limit} bytes")

    def duplicate(self, path: str, value: Any) -> None:
        shown = f'"{value}"' if isinstance(value, str) else value
        self.found.append(f"{path}: Duplicate value: {shown}")

    def unsupported(self, path: str, value: str, supported: Sequence[str]) -> None:
        names = ", ".join(f'"{name}"' for name in sorted(supported))
        self.found.append(f'{path}: Unsupported value: "{value}": supported values: {names}')

    def dns_label(self, path: str, value: str) -> None:
        """RFC 1123 label, up to 63 characters."""
        if len(value) > 63 or not DNS_LABEL.fullmatch(value):
            self.invalid(path, value, f"a lowercase RFC 1123 label must consist of {_LOWER} or '-'")

    def dns_subdomain(self, path: str, value: str, limit: int = MAX_SUBDOMAIN) -> None:
        """RFC 1123 subdomain of at most `limit` characters."""
        if not value:
            self.required(path)
        elif len(value) > limit and limit < MAX_SUBDOMAIN:
            self.too_long(path, limit)
        elif len(value) > MAX_SUBDOMAIN:
            self.invalid(path, value, f"must be no more than {MAX_SUBDOMAIN} characters")
        elif not DNS_SUBDOMAIN.fullmatch(value):
            self.invalid(path, value, f"a lowercase RFC 1123 subdomain must consist of {_LOWER}, '-' or '.'")

    def label_key(self, path: str, value: str) -> None:
        """`[prefix/]name`, as labels and taints have."""
        prefix, slash, name = value.rpartition("/")
        if slash:
            self.dns_subdomain(path, prefix)
        if not name:
            self.invalid(path, value, "name part must be non-empty")
        elif len(name) > 63 or not LABEL_NAME.fullmatch(name):
            self.invalid(path, value, "name part must consist of alphanumeric characters, '-', '_' or '.'")

    def label_value(self, path: str, value: str) -> None:
        if len(value) > 63 or not LABEL_VALUE.fullmatch(value):
            self.invalid(path, value, "a valid label must be empty or of alphanumeric characters, '-', '_' or '.'")

    def qualified_name(self, path: str, value: str) -> None:
        """`[domain/]identifier` of a device attribute or capacity: domain <= 63, C identifier <= 32."""
        domain, slash, identifier = value.rpartition("/")
        if slash:
            self.dns_subdomain(path, domain, 63)
        if len(identifier) > 32:
            self.too_long(path, 32)
        elif not C_IDENTIFIER.fullmatch(identifier):
            self.invalid(path, identifier, "a valid C identifier must start with alphabetic character or '_'")

    def fully_qualified_name(self, path: str, value: str) -> None:
        """A qualified name that must have its domain, as constraints ask for."""
        if "/" not in value:
            self.invalid(path, value, "a fully qualified name must be a domain and a name separated by a slash")
        else:
            self.qualified_name(path, value)
