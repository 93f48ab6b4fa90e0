"""Times as the API writes them, from Unix seconds. What people read on a terminal has the same form."""

from __future__ import annotations

from datetime import UTC, datetime


def render_time(unix_s: float) -> str:
    """As metav1.Time: RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def render_micro_time(unix_s: float) -> str:
    """As metav1.MicroTime: the same to the microsecond."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
