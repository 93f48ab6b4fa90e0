"""Kubernetes quantities as exact integers: "10Gi", "4864Mi", "1500m", "12e6".

Every quantity of the API is a whole number of nano units, because the API rounds anything finer away from zero; so one
integer holds it without loss. Parsing and writing follow k8s.io/apimachinery's resource.Quantity. Nothing here knows
what a quantity is of: bytes, shares and counters all come through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from tesela.core.errors import DocumentError

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

NANOS = 10**9
_EXPONENT_MAX = 100
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>[numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]+)"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class QuantityFormat(Enum):
    """How a quantity was written, which is how results computed from it are written."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """`nanos` billionths of the unit. Equal and ordered by value alone, as Kubernetes compares them."""

    nanos: int
    format: QuantityFormat = field(default=QuantityFormat.DECIMAL_SI, compare=False)

    @property
    def is_integer(self) -> bool:
        """Whether it is a whole number that fits an int64."""
        return self.nanos % NANOS == 0 and INT64_MIN <= self.nanos // NANOS <= INT64_MAX

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __float__(self) -> float:
        return self.nanos / NANOS

    def __str__(self) -> str:
        return format_quantity(self)


ZERO = Quantity(0)


def parse_quantity(text: str | float, path: str = "") -> Quantity:
    """The value of a quantity as the API writes it; a JSON number counts as its text.

    Finer than a billionth is rounded away from zero; binary suffixes stop at int64's largest value; no digits at all
    before a suffix count as 0, as in Kubernetes.
    `DocumentError` names `path` when the text is no quantity.
    """
    match = _NUMBER.fullmatch(str(text))
    if match is None or not match[0]:
        raise DocumentError(path, f"{text!r} is no quantity; write a number and a suffix such as 10Gi, 1500m or 12e6")
    suffix, fraction = match["suffix"], match["fraction"] or ""
    digits = int("0" + match["whole"] + fraction)
    if suffix in _DECIMAL:
        quantity_format, numerator, exponent = QuantityFormat.DECIMAL_SI, digits, _DECIMAL[suffix]
    elif suffix in _BINARY:
        quantity_format, numerator, exponent = QuantityFormat.BINARY_SI, digits << (10 * _BINARY.index(suffix)), 0
    else:
        quantity_format, numerator, exponent = QuantityFormat.DECIMAL_EXPONENT, digits, int(suffix[1:])
    if abs(exponent) > _EXPONENT_MAX:
        raise DocumentError(path, f"{text!r} has an exponent beyond {_EXPONENT_MAX}; write a smaller one")
    scale = exponent - len(fraction) + 9
    nanos = numerator * 10**scale if scale >= 0 else -(-numerator // 10**-scale)
    if quantity_format is QuantityFormat.BINARY_SI:
        nanos = min(nanos, INT64_MAX * NANOS)
    return Quantity(-nanos if match["sign"] == "-" else nanos, quantity_format)


def format_quantity(quantity: Quantity) -> str:
    """The canonical text in the quantity's own format: no fraction, the largest suffix that keeps the number whole.

    Binary suffixes are used from 1024 on and for whole numbers only, as Kubernetes does.
    """
    if quantity.nanos == 0:
        return "0"
    whole, rest = divmod(abs(quantity.nanos), NANOS)
    sign = "-" if quantity.nanos < 0 else ""
    if quantity.format is QuantityFormat.BINARY_SI and rest == 0 and whole >= 1024:
        power = 0
        while whole % 1024 == 0 and power < len(_BINARY) - 1:
            whole, power = whole // 1024, power + 1
        return f"{sign}{whole}{_BINARY[power]}"
    number, exponent = abs(quantity.nanos), -9
    while number % 1000 == 0 and exponent < 18:
        number, exponent = number // 1000, exponent + 3
    if quantity.format is QuantityFormat.DECIMAL_EXPONENT:
        return f"{sign}{number}e{exponent}" if exponent else f"{sign}{number}"
    return f"{sign}{number}{_DECIMAL_SUFFIX[exponent]}"
