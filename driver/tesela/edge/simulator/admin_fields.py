"""The fields of one admin request, each taken once and checked: what nobody took is unknown to that operation."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

from tesela.core.errors import DocumentError

T = TypeVar("T")
Document: TypeAlias = dict[str, Any]
MAX_COUNT: Final = 1_000_000_000
"""Counts add up over a machine's life, and NVML has 64 bits for a sum."""


class Fields:
    """The fields of one request; what nobody took is unknown to that operation."""

    def __init__(self, document: Document) -> None:
        self._document = dict(document)

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise DocumentError(name, "is missing")
        return value

    def optional_text(self, name: str) -> str | None:
        return self._take(name, str)

    def number(self, name: str) -> int:
        value = self.optional_number(name)
        if value is None:
            raise DocumentError(name, "is missing")
        return value

    def optional_number(self, name: str) -> int | None:
        value = self._take(name, int)
        if isinstance(value, bool):
            raise DocumentError(name, f"{value} is no number")
        return value

    def count(self, name: str) -> int:
        """A number of things, 0 where nothing is said."""
        value = self.optional_number(name)
        if value is not None and not 0 <= value <= MAX_COUNT:
            raise DocumentError(name, f"{value} is outside 0..{MAX_COUNT}")
        return value or 0

    def seconds(self, name: str) -> float:
        value = self._take(name, object)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DocumentError(name, "is missing or no number of seconds")
        try:
            return float(value)
        except OverflowError as error:
            raise DocumentError(name, "is beyond any number of seconds") from error

    def flag(self, name: str) -> bool:
        return bool(self._take(name, bool))

    def finish(self) -> None:
        if self._document:
            raise DocumentError(min(self._document), "is unknown to this operation")

    def _take(self, name: str, kind: type[T]) -> T | None:
        value = self._document.pop(name, None)
        if value is not None and not isinstance(value, kind):
            raise DocumentError(name, f"{value!r} has the wrong type")
        return value
