"""Sentences that have to fit into a field of the API."""

from __future__ import annotations

from typing import Final

_CUT: Final = "..."


def cut_text(text: str, limit_bytes: int) -> str:
    """At most so many bytes of valid UTF-8: a longer text is cut between two characters and ends with dots."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    return encoded[: limit_bytes - len(_CUT)].decode(errors="ignore") + _CUT
