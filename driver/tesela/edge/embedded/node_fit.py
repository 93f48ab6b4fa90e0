"""Whether a pod may run on a node: its own wishes and the node's taints, and where allocated devices can be reached.

Pure. Rules: the NodeUnschedulable, NodeAffinity (nodeSelector only) and TaintToleration plugins of kube-scheduler.
"""

from __future__ import annotations

from tesela.core.allocator import parse_node
from tesela.core.allocator.model import NodeRequirement, NodeScope, NodeSelectorTerm
from tesela.core.allocator.nodes import scope_matches
from tesela.edge.kube.port import Json


def node_refusal(pod: Json, node: Json) -> str | None:
    """Why the pod may not run there, in the scheduler's words; None if it may."""
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        return "node(s) were unschedulable"
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in spec.get("taints", []):
        if taint["effect"] != "PreferNoSchedule" and not _is_tolerated(taint, pod["spec"].get("tolerations", [])):
            return "node(s) had untolerated taint(s)"
    return None


def _is_tolerated(taint: Json, tolerations: list[Json]) -> bool:
    return any(
        toleration.get("effect") in {None, "", taint["effect"]}
        and toleration.get("key") in {None, "", taint["key"]}
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )


def allocation_reaches(allocation: Json, node: Json) -> bool:
    """Whether allocated devices can be used on the node; without a node selector they can everywhere."""
    selector = allocation.get("nodeSelector")
    if selector is None:
        return True
    terms = tuple(
        NodeSelectorTerm(
            expressions=_requirements(term.get("matchExpressions", [])),
            fields=_requirements(term.get("matchFields", [])),
        )
        for term in selector["nodeSelectorTerms"]
    )
    return scope_matches(NodeScope(node_selector=terms), parse_node(node))


def _requirements(entries: list[Json]) -> tuple[NodeRequirement, ...]:
    return tuple(
        NodeRequirement(key=entry["key"], operator=entry["operator"], values=tuple(entry.get("values", [])))
        for entry in entries
    )
