"""A shipped ValidatingAdmissionPolicy, evaluated as the API server does: conditions, variables in order, validations.

What differs from the real one: no type check, no cost limits. tests/e2e has those.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

PERMISSIONS = Path(__file__).parents[1] / "daemonset" / "base" / "permissions"
PLURALS = {
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
}
_INPUTS = ("object", "oldObject", "request")
_VARIABLE = re.compile(r"\bvariables\.(\w+)")


class AdmissionPolicy:
    """One policy of a file there."""

    def __init__(self, file: str, name: str) -> None:
        documents = yaml.safe_load_all((PERMISSIONS / file).read_text())
        self.spec = next(
            document["spec"]
            for document in documents
            if document["kind"] == "ValidatingAdmissionPolicy" and document["metadata"]["name"] == name
        )

    def decide(self, obj: dict, old: dict | None = None) -> str | None:
        """The message with which `obj` (an update of `old`, else new) is refused; None where it is let through."""
        inputs = {
            "object": obj,
            "oldObject": old,
            "request": {
                "operation": "CREATE" if old is None else "UPDATE",
                "resource": {"group": "resource.k8s.io", "version": "v1", "resource": PLURALS[obj["kind"]]},
            },
        }
        if not all(_evaluate(condition, inputs) for condition in self._conditions):
            return None
        return next((_evaluate(message, inputs) for rule, message in self._rules if not _evaluate(rule, inputs)), None)

    @cached_property
    def _env(self) -> cel.Env:
        extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings(2), ext_bindings.ExtBindings()]
        return cel.NewEnv(variables=dict.fromkeys(_INPUTS, cel.Type.DYN), extensions=extensions)

    @cached_property
    def _conditions(self) -> list[cel.Expression]:
        return [self._env.compile(one["expression"]) for one in self.spec["matchConditions"]]

    @cached_property
    def _rules(self) -> list[tuple[cel.Expression, cel.Expression]]:
        return [
            (self._compile(one["expression"]), self._compile(one["messageExpression"]))
            for one in self.spec["validations"]
        ]

    def _compile(self, expression: str) -> cel.Expression:
        """With its variables bound inside: where Python reads a null, the runtime gives back a reference too many."""
        text = _VARIABLE.sub(r"variables_\1", expression)
        for variable in reversed(self.spec["variables"]):
            value = _VARIABLE.sub(r"variables_\1", variable["expression"])
            text = f"cel.bind(variables_{variable['name']}, {value}, {text})"
        return self._env.compile(text)


def _evaluate(expression: cel.Expression, inputs: dict) -> bool | str:
    result = expression.eval(data=inputs)
    if result.type() == cel.Type.ERROR:
        raise AssertionError(str(result.value()))
    return result.value()
