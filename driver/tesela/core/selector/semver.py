"""Semantic versions as CEL selectors compare them: strict semver 2.0, and the tolerant reading of `semver(s, true)`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_NUMBER = r"0|[1-9][0-9]*"
_VERSION = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    r"(?:-(?P<pre>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+(?P<build>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_UINT64_MAX = 2**64 - 1


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A version without its build metadata, which takes no part in comparisons."""

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def __str__(self) -> str:
        core = f"{self.major}.{self.minor}.{self.patch}"
        return f"{core}-{'.'.join(map(str, self.pre))}" if self.pre else core

    def _key(self) -> tuple[int, int, int, bool, list[tuple[bool, int, str]]]:
        # A release comes after its pre-releases; numbers come before words; a shorter list before a longer one.
        pre = [(isinstance(part, str), 0 if isinstance(part, str) else part, str(part)) for part in self.pre]
        return self.major, self.minor, self.patch, not self.pre, pre


def parse_version(text: str) -> Version:
    """A strict semantic version; `ValueError` says what is wrong."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no semantic version")
    numbers = [int(match[name]) for name in ("major", "minor", "patch")]
    pre = tuple(_parse_pre(part, text) for part in match["pre"].split(".")) if match["pre"] else ()
    if any(number > _UINT64_MAX for number in (*numbers, *(part for part in pre if isinstance(part, int)))):
        raise ValueError(f"{text!r} has a number beyond 64 bits")
    return Version(numbers[0], numbers[1], numbers[2], pre)


def normalize_version(text: str) -> str:
    """`text` without a leading v and leading zeros, with 0 for missing parts; `ValueError` if none may be missing."""
    parts = [_strip_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise ValueError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _strip_zeros(part: str) -> str:
    if len(part) <= 1:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() else "0" + stripped


def _parse_pre(part: str, text: str) -> int | str:
    if not part.isdigit():
        return part
    if len(part) > 1 and part.startswith("0"):
        raise ValueError(f"{text!r} has a numeric pre-release with a leading zero")
    return int(part)
