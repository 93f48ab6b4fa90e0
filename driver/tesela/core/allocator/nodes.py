"""Nodes: whether a slice or a device reaches one, and where an allocation can be used.

Matching follows component-helpers' nodeaffinity, the rules that Kubernetes uses for node selectors everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tesela.core.allocator.model import NodeInfo, NodeRequirement, NodeScope, NodeSelectorTerm
from tesela.core.allocator.verdict import DeviceResult, FatalError

_INTEGER = re.compile(r"[+-]?[0-9]+")


def scope_matches(scope: NodeScope, node: NodeInfo) -> bool:
    """Whether `scope` reaches `node`; a scope that says nothing reaches none."""
    if scope.node_name:
        return scope.node_name == node.name
    if scope.all_nodes:
        return True
    return any(_term_matches(term, node) for term in scope.node_selector or ())


def _term_matches(term: NodeSelectorTerm, node: NodeInfo) -> bool:
    if not term.expressions and not term.fields:
        return False
    fields = {"metadata.name": node.name}
    return all(_requirement_holds(requirement, node.labels) for requirement in term.expressions) and all(
        _requirement_holds(requirement, fields) for requirement in term.fields
    )


def _requirement_holds(requirement: NodeRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
        case _:
            return False


def _compares(requirement: NodeRequirement, value: str | None) -> bool:
    if value is None or len(requirement.values) != 1:
        return False
    if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(requirement.values[0])):
        return False
    difference = int(value) - int(requirement.values[0])
    return difference > 0 if requirement.operator == "Gt" else difference < 0


def results_node_selector(results: Sequence[DeviceResult], node: NodeInfo) -> NodeSelectorTerm | None:
    """Where an allocation can be used: this node if any device is bound to one, the devices' selectors, or anywhere.

    `FatalError` for a selector of several terms, which the API does not accept in a slice.
    """
    expressions: list[NodeRequirement] = []
    fields: list[NodeRequirement] = []
    for result in results:
        if result.scope.node_name is not None or result.device.binds_to_node:
            name = NodeRequirement(key="metadata.name", operator="In", values=(node.name,))
            return NodeSelectorTerm(fields=(name,))
        terms = result.scope.node_selector or ()
        if len(terms) > 1:
            raise FatalError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for term in terms:
            _add_new(term.fields, fields)
            _add_new(term.expressions, expressions)
    if not expressions and not fields:
        return None
    return NodeSelectorTerm(expressions=tuple(expressions), fields=tuple(fields))


def _add_new(requirements: Sequence[NodeRequirement], to: list[NodeRequirement]) -> None:
    for requirement in requirements:
        if not any(
            known.key == requirement.key
            and known.operator == requirement.operator
            and set(known.values) == set(requirement.values)
            for known in to
        ):
            to.append(requirement)
