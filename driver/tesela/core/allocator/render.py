"""An answer as the API writes it: `status.allocation` of a ResourceClaim."""

from __future__ import annotations

from typing import Any

from tesela.core.allocator.model import NodeRequirement, NodeSelectorTerm
from tesela.core.allocator.verdict import AllocationConfig, ClaimAllocation, DeviceResult
from tesela.core.quantity import format_quantity


def render_allocation(allocation: ClaimAllocation) -> dict[str, Any]:
    """The JSON of `status.allocation`, without allocationTimestamp: time is the caller's."""
    devices: dict[str, Any] = {"results": [_render_result(result) for result in allocation.results]}
    if allocation.config:
        devices["config"] = [_render_config(config) for config in allocation.config]
    document: dict[str, Any] = {"devices": devices}
    if allocation.node_selector is not None:
        document["nodeSelector"] = {"nodeSelectorTerms": [_render_term(allocation.node_selector)]}
    return document


def _render_result(result: DeviceResult) -> dict[str, Any]:
    document: dict[str, Any] = {
        "request": result.request,
        "driver": result.id.driver,
        "pool": result.id.pool,
        "device": result.id.device,
    }
    if result.admin_access:
        document["adminAccess"] = True
    if result.tolerations:
        document["tolerations"] = [dict(toleration.document) for toleration in result.tolerations]
    if result.device.binding_conditions:
        document["bindingConditions"] = list(result.device.binding_conditions)
    if result.device.binding_failure_conditions:
        document["bindingFailureConditions"] = list(result.device.binding_failure_conditions)
    if result.share_id is not None:
        document["shareID"] = result.share_id
    if result.consumed:
        document["consumedCapacity"] = {name: format_quantity(value) for name, value in result.consumed.items()}
    return document


def _render_config(config: AllocationConfig) -> dict[str, Any]:
    document: dict[str, Any] = {"source": config.source}
    if config.requests:
        document["requests"] = list(config.requests)
    return {**document, **config.config.body}


def _render_term(term: NodeSelectorTerm) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if term.expressions:
        document["matchExpressions"] = [_render_requirement(requirement) for requirement in term.expressions]
    if term.fields:
        document["matchFields"] = [_render_requirement(requirement) for requirement in term.fields]
    return document


def _render_requirement(requirement: NodeRequirement) -> dict[str, Any]:
    document: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
    if requirement.values:
        document["values"] = list(requirement.values)
    return document
