"""NVIDIA's version texts as strict semantic versions, the only kind that a version attribute may hold."""

from __future__ import annotations

import re

UNKNOWN_VERSION = "0.0.0"
"""What a version attribute says when the machine does not tell: a selector that compares it does not abort."""

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_DIGITS = 18  # a semantic version's numbers are compared as 64-bit integers


def render_version(text: str) -> str:
    """`580.95.05` becomes `580.95.5` and `9.0` becomes `9.0.0`; what is no version becomes 0.0.0."""
    match = _VERSION.match(text)
    if match is None:
        return UNKNOWN_VERSION
    numbers = match[0].split(".")[:3]
    if any(len(number.lstrip("0")) > _DIGITS for number in numbers):
        return UNKNOWN_VERSION
    return ".".join(str(int(number)) for number in (*numbers, "0", "0")[:3])


def render_cuda_version(version: int) -> str:
    """nvmlSystemGetCudaDriverVersion's number: 12080 becomes `12.8.0`; 0 is unknown."""
    return f"{version // 1000}.{version % 1000 // 10}.0" if version > 0 else UNKNOWN_VERSION
