"""A selector's text into a program: parsed, type-checked as Kubernetes declares `device`, and rewritten to evaluate.

Two differences from plain CEL are made in the tree. A domain that no attribute or capacity has reads as an empty map
(so `device.attributes["d"].?x` never fails, while `"d" in device.attributes` is false); lookups by domain therefore go
to a second variable in which the domains that the expression names always exist. And int, uint and double compare with
each other, which the runtime does at run time only: such complaints of the checker are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from tesela.core.selector.library import (
    GUARD,
    LACKING,
    LACKING_NAMESPACES,
    LACKING_ON_LISTS,
    QUANTITY_TYPE,
    TYPE_NAMES,
    checked_functions,
    evaluated_functions,
)
from tesela.core.selector.outcome import CompileError, SelectorUndecided
from tesela.core.selector.syntax import Node, Tree, children, constant_string, ident_name, selected_field, walk

BY_DOMAIN = {"attributes": "device_attributes_by_domain", "capacity": "device_capacity_by_domain"}
"""The variables that lookups by domain are sent to."""

_DEVICE_FIELDS = frozenset({"driver", "attributes", "capacity", "allowMultipleAllocations"})
_LOOKUPS = frozenset({"_[_]", "_[?_]", "_?._"})
_TWO_VARIABLES = frozenset({"all", "exists", "exists_one"})
_NUMBERS = "int|uint|double|dyn"
_CROSS_TYPE = re.compile(
    rf"found no matching overload for '_(?:<|<=|>|>=)_' applied to '\((?:{_NUMBERS}), (?:{_NUMBERS})\)'"
)
_NO_OVERLOAD_ON_LIST = re.compile(r"found no matching overload for '(\w+)' applied to '\(list\(")
_ERROR = re.compile(r"ERROR: <input>:\d+:\d+: ([^\n]*)")
_T = cel.Type


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled selector; `domains` are those its lookups name.

    `guarded` does the same, slower, and fails as Kubernetes does where a version or quantity is compared (== or !=)
    with something else.
    """

    expression: cel.Expression
    guarded: cel.Expression
    domains: frozenset[str]


@lru_cache(maxsize=1024)
def compile_selector(text: str) -> Program | CompileError | SelectorUndecided:
    """The program for `text`, or why there is none."""
    try:
        tree = parse_tree(text)
    except RuntimeError as error:
        return _compile_error(error)
    lacking = _lacking_function(tree.root) or _odd_use_of_device(tree.root) or _mixed_list(tree.root)
    if lacking is not None:
        return lacking
    complaint = _check(text)
    if complaint is not None:
        return complaint
    domains = frozenset(_send_lookups_by_domain(tree.root))
    expression = _run_env().deserialize(tree.serialize())
    _guard_equality(tree.root)
    return Program(expression, _run_env().deserialize(tree.serialize()), domains)


def parse_tree(text: str) -> Tree:
    """The expression as parsed, macros expanded; RuntimeError where it cannot be."""
    return Tree(_run_env().compile(text, disable_check=True).serialize())


def _extensions() -> list[cel.CelExtensionBase]:
    return [ext_optional.ExtOptional(), ext_strings.ExtStrings(2), ext_bindings.ExtBindings()]


@cache
def _check_env() -> cel.Env:
    by_name = {"attributes": _T.DYN, "capacity": QUANTITY_TYPE}
    variables = {
        "device.driver": _T.STRING,
        "device.allowMultipleAllocations": _T.BOOL,
        **{f"device.{name}": _T.Map(_T.STRING, _T.Map(_T.STRING, value)) for name, value in by_name.items()},
    }
    return cel.NewEnv(variables=variables, extensions=_extensions(), functions=checked_functions())


@cache
def _run_env() -> cel.Env:
    variables = {"device": _T.DYN, **dict.fromkeys(BY_DOMAIN.values(), _T.DYN)}
    return cel.NewEnv(variables=variables, extensions=_extensions(), functions=evaluated_functions())


def _check(text: str) -> CompileError | SelectorUndecided | None:
    try:
        expression = _check_env().compile(text)
    except RuntimeError as error:
        complaints = _ERROR.findall(str(error)) or [str(error)]
        on_list = next((match for match in map(_NO_OVERLOAD_ON_LIST.search, complaints) if match), None)
        if on_list is not None and on_list[1] in LACKING_ON_LISTS:
            return SelectorUndecided(f"{on_list[1]} on a list")
        if all(_CROSS_TYPE.search(complaint) for complaint in complaints):
            return None
        return _compile_error(error)
    result = expression.return_type()
    if result in (_T.BOOL, _T.DYN):
        return None
    return CompileError(f"must evaluate to bool or the unknown type, not {result.name().lower()}")


def _compile_error(error: RuntimeError) -> CompileError:
    complaints = _ERROR.findall(str(error))
    text = str(complaints[0] if complaints else error)
    for written, meant in TYPE_NAMES.items():
        text = text.replace(written, meant)
    return CompileError(f"compilation failed: {text}")


def _lacking_function(root: Node) -> SelectorUndecided | None:
    for node in walk(root):
        if not node.HasField("call_expr"):
            continue
        call = node.call_expr
        name = str(call.function)
        namespace = ident_name(call.target) if call.HasField("target") else None
        if namespace in LACKING_NAMESPACES:
            return SelectorUndecided(f"{namespace}.{name}")
        if name in LACKING:
            return SelectorUndecided(name)
        if name in _TWO_VARIABLES and len(call.args) == 3:
            return SelectorUndecided(f"{name} with two variables")
    return None


def _mixed_list(root: Node) -> CompileError | None:
    """Kubernetes wants list literals of one type, those for `format` aside; the runtime does not mind.

    Seen here: strings beside other literals.
    """
    for node in walk(root):
        if node.HasField("call_expr") and node.call_expr.function == "format":
            continue
        for child in children(node):
            literals = [element for element in child.list_expr.elements if element.HasField("const_expr")]
            if len({constant_string(literal) is None for literal in literals}) > 1:
                return CompileError("compilation failed: a list literal mixes strings with values of other types")
    return None


def _odd_use_of_device(root: Node) -> CompileError | SelectorUndecided | None:
    """`device` is read field by field, its maps by domain, `in`, or a macro over their keys; the rest is undecided."""
    for node in walk(root):
        for child in children(node):
            if ident_name(child) == "device":
                field = selected_field(node, "device")
                if field is None:
                    return SelectorUndecided("device as a value")
                if node.select_expr.test_only:
                    return SelectorUndecided(f"has(device.{field})")
                if field not in _DEVICE_FIELDS:
                    return CompileError(f"compilation failed: undefined field '{field}'")
            field = selected_field(child, "device")
            if field in BY_DOMAIN and not _reads_map(node, child):
                return SelectorUndecided(f"device.{field} as a value")
        if _looked_up(node) is not None and _domain_key(node) is None:
            return SelectorUndecided("a computed domain")
    return None


def _reads_map(node: Node, device_map: Node) -> bool:
    if _looked_up(node) is device_map or node.HasField("select_expr"):
        return True
    if node.HasField("comprehension_expr"):
        return bool(node.comprehension_expr.iter_range is device_map)
    return node.HasField("call_expr") and node.call_expr.function in {"@in", "size"}


def _looked_up(node: Node) -> Node | None:
    """The `device.attributes` or `device.capacity` that `node` looks a domain up in."""
    if node.HasField("select_expr"):
        operand = node.select_expr.operand
    elif node.HasField("call_expr") and node.call_expr.function in _LOOKUPS:
        operand = node.call_expr.args[0]
    else:
        return None
    return operand if selected_field(operand, "device") in BY_DOMAIN else None


def _domain_key(node: Node) -> str | None:
    """The domain that `node` names; the empty string for `device.driver`, None for a computed one."""
    if node.HasField("select_expr"):
        return str(node.select_expr.field)
    key = node.call_expr.args[1]
    return "" if selected_field(key, "device") == "driver" else constant_string(key)


def _guard_equality(root: Node) -> None:
    comparisons = [
        node for node in walk(root) if node.HasField("call_expr") and node.call_expr.function in {"_==_", "_!=_"}
    ]
    for node in reversed(comparisons):
        comparison = type(node)()
        comparison.CopyFrom(node)
        guard = type(node)()
        guard.call_expr.function = GUARD
        guard.call_expr.args.add().list_expr.elements.extend(comparison.call_expr.args)
        node.call_expr.function = "_?_:_"
        del node.call_expr.args[:]
        node.call_expr.args.extend([guard, comparison, comparison])


def _send_lookups_by_domain(root: Node) -> list[str]:
    lookups = [(operand, _domain_key(node)) for node in walk(root) if (operand := _looked_up(node)) is not None]
    for operand, _ in lookups:
        field = selected_field(operand, "device") or ""
        operand.ClearField("select_expr")
        operand.ident_expr.name = BY_DOMAIN[field]
    return [domain for _, domain in lookups if domain]
