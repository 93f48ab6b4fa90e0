"""Kubernetes quantities in the one spelling that the API server keeps: `40960Mi` becomes `40Gi`, `1000` becomes `1k`.

Rules: k8s.io/apimachinery pkg/api/resource (ParseQuantity, CanonicalizeBytes). Values are exact, down to nano.
"""

from __future__ import annotations

import re
from fractions import Fraction

_PATTERN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE]?)")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_NANO = Fraction(1, 10**9)


def canonical(text: str) -> str:
    """The spelling the API server would store for `text`. ValueError where it is no quantity."""
    match = _PATTERN.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = match.groups()
    scale = _scale(suffix)
    # finer than nano rounds up, away from zero
    value = Fraction(number) * scale
    nanos = value / _NANO
    if nanos.denominator != 1:
        value = _NANO * (int(nanos) + (1 if nanos > 0 else -1))
    if suffix in _BINARY and abs(value) >= 1024 and value.denominator == 1:
        return _with_suffix(int(value), 1024, {power: name for name, power in _BINARY.items()} | {0: ""})
    if suffix[:1] in {"e", "E"} and suffix != "E":
        return _exponent(value)
    return _with_suffix(int(value / _NANO), 1000, {power + 3: name for name, power in _DECIMAL.items()})


def _scale(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(1024 ** _BINARY[suffix])
    if suffix in _DECIMAL:
        return Fraction(1000) ** _DECIMAL[suffix]
    return Fraction(10) ** int(suffix[1:])


def _with_suffix(mantissa: int, base: int, suffixes: dict[int, str]) -> str:
    """`mantissa` with as many factors of `base` moved into the suffix as divide it evenly."""
    if mantissa == 0:
        return "0"
    power = 0
    while mantissa % base == 0 and power + 1 in suffixes:
        mantissa //= base
        power += 1
    return f"{mantissa}{suffixes[power]}"


def _exponent(value: Fraction) -> str:
    mantissa, exponent = int(value / _NANO), -9
    while mantissa and mantissa % 1000 == 0:
        mantissa //= 1000
        exponent += 3
    return f"{mantissa}e{exponent}" if mantissa and exponent else str(mantissa)
