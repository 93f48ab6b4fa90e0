"""Evaluation of a selector for one device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

from tesela.core.quantity import Quantity
from tesela.core.selector.attributes import Attribute, AttributeKind
from tesela.core.selector.compile import BY_DOMAIN, Program, compile_selector
from tesela.core.selector.library import UNDECIDED_MARK, quantity_value, version_value
from tesela.core.selector.outcome import Match, NoMatch, Outcome, SelectorRuntimeError, SelectorUndecided
from tesela.core.selector.semver import parse_version

_STATUS = re.compile(r"^[A-Z_]+: ")
_MISSING_KEY = re.compile(r'Key not found in map : "?(.*?)"?$')


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorDevice:
    """What a selector sees of a device. Names without a domain belong to the driver's."""

    driver: str
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, Quantity]
    allow_multiple: bool = False


def evaluate_selector(text: str, device: SelectorDevice) -> Outcome:
    """Whether `text` selects `device`, by the rules of Kubernetes 1.37 for stored expressions.

    Compiled programs are kept. Cost limits are not applied.
    """
    program = compile_selector(text)
    if not isinstance(program, Program):
        return program
    try:
        data = _activation(program, device)
    except ValueError as error:
        return SelectorRuntimeError(str(error))
    names_version = any(
        attribute.kind is AttributeKind.VERSION and name.rpartition("/")[2] in text
        for name, attribute in device.attributes.items()
    )
    result = (program.guarded if names_version else program.expression).eval(data=data)
    if result.type() == cel.Type.BOOL:
        return Match() if result.value() else NoMatch()
    if result.type() == cel.Type.ERROR:
        problem = _error_text(str(result.value()))
        _, mark, undecided = problem.partition(UNDECIDED_MARK)
        return SelectorUndecided(undecided) if mark else SelectorRuntimeError(problem)
    kind = result.type().name().lower().partition("<")[0]
    return SelectorRuntimeError(f"CEL result of type {kind} could not be converted to bool")


def _activation(program: Program, device: SelectorDevice) -> dict[str, Any]:
    values = {
        "attributes": _by_domain(
            device.driver, {name: _value(name, value) for name, value in device.attributes.items()}
        ),
        "capacity": _by_domain(device.driver, {name: quantity_value(value) for name, value in device.capacity.items()}),
    }
    empty: dict[str, dict[str, Any]] = {domain: {} for domain in (device.driver, *program.domains)}
    return {
        "device": {
            "driver": device.driver,
            "allowMultipleAllocations": device.allow_multiple,
            **values,
        },
        **{variable: {**empty, **values[name]} for name, variable in BY_DOMAIN.items()},
    }


def _by_domain(driver: str, named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for qualified, value in named.items():
        domain, separator, name = qualified.partition("/")
        if not separator:
            domain, name = driver, qualified
        domains.setdefault(domain, {})[name] = value
    return domains


def _value(name: str, attribute: Attribute) -> Any:
    try:
        match attribute.kind:
            case AttributeKind.VERSION:
                return version_value(parse_version(str(attribute.value)))
            case AttributeKind.VERSIONS if isinstance(attribute.value, tuple):
                return [version_value(parse_version(str(text))) for text in attribute.value]
            case AttributeKind.NONE:
                raise ValueError("unsupported attribute value")
            case _:
                return list(attribute.value) if isinstance(attribute.value, tuple) else attribute.value
    except ValueError as error:
        raise ValueError(f"attribute {name}: {error}") from error


def _error_text(text: str) -> str:
    text = _STATUS.sub("", text)
    missing = _MISSING_KEY.search(text)
    return f"no such key: {missing[1]}" if missing else text
