"""Kubernetes' own CEL functions for selectors: quantities and semantic versions; and the names of those we lack.

The runtime has no types of its own making, so a quantity and a version travel as maps with one marked entry whose text
is canonical: equal values are equal maps. The checker sees two map types that nothing else has; evaluation looks at
the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cel_expr_python import cel

from tesela.core.errors import DocumentError
from tesela.core.quantity import NANOS, Quantity, parse_quantity
from tesela.core.selector.semver import Version, normalize_version, parse_version

_QUANTITY, _VERSION = "quantity nanos", "semantic version"
_T = cel.Type
QUANTITY_TYPE = _T.Map(_T.BOOL, _T.UINT)
VERSION_TYPE = _T.Map(_T.BOOL, _T.BYTES)
TYPE_NAMES = {"map(bool, uint)": "kubernetes.Quantity", "map(bool, bytes)": "kubernetes.Semver"}
"""How the checker writes the two types, and what they mean."""

_ANY_MAP = _T.Map(_T.DYN, _T.DYN)

Marked = Mapping[str, str]

GUARD = "kubernetes_can_equal"
"""`GUARD([a, b])` is true, or the error that Kubernetes gives for `a == b` where only `a` is a quantity or version."""

UNDECIDED_MARK = "undecided: "
"""An error that begins so is no error of the selector but names what we cannot tell."""

_HELD_AS_INT64 = 100 * 2**40

LACKING = frozenset(
    {
        *(
            "isSorted",
            "sum",
            "min",
            "max",
            "slice",
            "flatten",
            "distinct",
            "sort",
            "sortBy",
            "reverse",
            "first",
            "last",
        ),
        *("transformList", "transformMap", "transformMapEntry", "existsOne", "includes", "find", "findAll"),
        *("url", "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery"),
        *("ip", "isIP", "isCanonical", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast"),
        *("isLinkLocalUnicast", "isGlobalUnicast", "cidr", "isCIDR", "containsIP", "containsCIDR", "masked"),
        *("prefixLength", "validate"),
    }
)
"""Functions that Kubernetes declares for selectors and that are not evaluated here."""

LACKING_NAMESPACES = frozenset({"sets", "lists", "format"})
"""Namespaces all of whose functions we lack: `sets.contains`, `lists.range`, `format.named`."""

LACKING_ON_LISTS = frozenset({"indexOf", "lastIndexOf"})
"""Functions that are here for strings and not for lists."""


def quantity_value(quantity: Quantity) -> Marked:
    """A quantity as selectors see it."""
    return {_QUANTITY: str(quantity.nanos)}


def version_value(version: Version) -> Marked:
    """A semantic version as selectors see it."""
    return {_VERSION: str(version)}


def checked_functions() -> list[cel.FunctionDecl]:
    """Declarations for the type checker; they are never called."""
    q, v = QUANTITY_TYPE, VERSION_TYPE
    comparisons = {"isGreaterThan": _T.BOOL, "isLessThan": _T.BOOL, "compareTo": _T.INT}
    members: dict[str, list[tuple[cel.Type, list[cel.Type]]]] = {
        **{name: [(result, [q, q]), (result, [v, v])] for name, result in comparisons.items()},
        "asApproximateFloat": [(_T.DOUBLE, [q])],
        "asInteger": [(_T.INT, [q])],
        "isInteger": [(_T.BOOL, [q])],
        "add": [(q, [q, q]), (q, [q, _T.INT])],
        "sub": [(q, [q, q]), (q, [q, _T.INT])],
        **{name: [(_T.INT, [v])] for name in ("major", "minor", "patch")},
    }
    plain: dict[str, list[tuple[cel.Type, list[cel.Type]]]] = {
        "quantity": [(q, [_T.STRING])],
        "isQuantity": [(_T.BOOL, [_T.STRING])],
        "sign": [(_T.INT, [q])],
        "semver": [(v, [_T.STRING]), (v, [_T.STRING, _T.BOOL])],
        "isSemver": [(_T.BOOL, [_T.STRING]), (_T.BOOL, [_T.STRING, _T.BOOL])],
    }
    return [
        cel.FunctionDecl(
            name,
            [
                cel.Overload(f"checked_{name}_{index}", result, parameters, is_member)
                for index, (result, parameters) in enumerate(overloads)
            ],
        )
        for is_member, functions in ((True, members), (False, plain))
        for name, overloads in functions.items()
    ]


def evaluated_functions() -> list[cel.FunctionDecl]:
    """The functions themselves, for unchecked trees: values of every map type reach them."""
    two, one, text = [_ANY_MAP, _ANY_MAP], [_ANY_MAP], [_T.STRING]
    return [
        _function("isGreaterThan", _T.BOOL, two, _is_greater, is_member=True),
        _function("isLessThan", _T.BOOL, two, _is_less, is_member=True),
        _function("compareTo", _T.INT, two, _compare, is_member=True),
        _function("asApproximateFloat", _T.DOUBLE, one, lambda value: float(_quantity(value)), is_member=True),
        _function("asInteger", _T.INT, one, _as_integer, is_member=True),
        _function("isInteger", _T.BOOL, one, _is_integer, is_member=True),
        _function(GUARD, _T.BOOL, [_T.List(_T.DYN)], _can_equal),
        _arithmetic("add", 1),
        _arithmetic("sub", -1),
        _function("major", _T.INT, one, lambda value: _version(value).major, is_member=True),
        _function("minor", _T.INT, one, lambda value: _version(value).minor, is_member=True),
        _function("patch", _T.INT, one, lambda value: _version(value).patch, is_member=True),
        _function("quantity", _ANY_MAP, text, lambda value: quantity_value(_read_quantity(value))),
        _function("isQuantity", _T.BOOL, text, _is_quantity),
        _function("sign", _T.INT, one, _sign),
        _optional_flag("semver", _ANY_MAP, lambda value, normalize: version_value(_read_version(value, normalize))),
        _optional_flag("isSemver", _T.BOOL, _is_version),
    ]


def _function(
    name: str, result: cel.Type, parameters: list[cel.Type], body: Callable[..., Any], *, is_member: bool = False
) -> cel.FunctionDecl:
    return cel.FunctionDecl(name, [cel.Overload(f"evaluated_{name}", result, parameters, is_member, body)])


def _arithmetic(name: str, sign: int) -> cel.FunctionDecl:
    def with_quantity(left: Marked, right: Marked) -> Marked:
        return quantity_value(Quantity(_quantity(left).nanos + sign * _quantity(right).nanos))

    def with_integer(left: Marked, right: int) -> Marked:
        return quantity_value(Quantity(_quantity(left).nanos + sign * right * NANOS))

    overloads = [
        cel.Overload(f"evaluated_{name}", _ANY_MAP, [_ANY_MAP, _ANY_MAP], True, with_quantity),
        cel.Overload(f"evaluated_{name}_int", _ANY_MAP, [_ANY_MAP, _T.INT], True, with_integer),
    ]
    return cel.FunctionDecl(name, overloads)


def _optional_flag(name: str, result: cel.Type, body: Callable[[str, bool], Any]) -> cel.FunctionDecl:
    overloads = [
        cel.Overload(f"evaluated_{name}", result, [_T.STRING], False, lambda value: body(value, False)),
        cel.Overload(f"evaluated_{name}_normalize", result, [_T.STRING, _T.BOOL], False, body),
    ]
    return cel.FunctionDecl(name, overloads)


def _quantity(value: Marked) -> Quantity:
    if _QUANTITY not in value:
        raise ValueError("no such overload: not a quantity")
    return Quantity(int(value[_QUANTITY]))


def _version(value: Marked) -> Version:
    if _VERSION not in value:
        raise ValueError("no such overload: not a semantic version")
    return parse_version(value[_VERSION])


def _compare(left: Marked, right: Marked) -> int:
    if _VERSION in left:
        mine, other = _version(left), _version(right)
        return (mine > other) - (mine < other)
    difference = _quantity(left).nanos - _quantity(right).nanos
    return (difference > 0) - (difference < 0)


def _is_greater(left: Marked, right: Marked) -> bool:
    return _compare(left, right) > 0


def _is_less(left: Marked, right: Marked) -> bool:
    return _compare(left, right) < 0


def _is_integer(value: Marked) -> bool:
    # Kubernetes says no to whole numbers that it does not hold as an int64, which from here on depends on the text.
    quantity = _quantity(value)
    if quantity.is_integer and abs(quantity.nanos) >= _HELD_AS_INT64 * NANOS:
        raise ValueError(f"{UNDECIDED_MARK}isInteger or asInteger on 100Ti or more")
    return quantity.is_integer


def _as_integer(value: Marked) -> int:
    if not _is_integer(value):
        raise ValueError("cannot convert value to integer")
    return _quantity(value).nanos // NANOS


def _can_equal(sides: Sequence[Any]) -> bool:
    left, right = sides
    for mark in (_QUANTITY, _VERSION):
        if isinstance(left, Mapping) and mark in left and not (isinstance(right, Mapping) and mark in right):
            raise ValueError("no such overload")
    return True


def _sign(value: Marked) -> int:
    nanos = _quantity(value).nanos
    return (nanos > 0) - (nanos < 0)


def _read_quantity(text: str) -> Quantity:
    try:
        return parse_quantity(text)
    except DocumentError as error:
        raise ValueError(str(error)) from error


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except DocumentError:
        return False
    return True


def _read_version(text: str, normalize: bool) -> Version:
    return parse_version(normalize_version(text) if normalize else text)


def _is_version(text: str, normalize: bool) -> bool:
    try:
        _read_version(text, normalize)
    except ValueError:
        return False
    return True
