"""The scheduler of the embedded cluster: devices by Tesela's own allocator, pods in the order of their creation.

Looks at nodes (schedulable, selector, taints) and devices, at nothing else of a pod: cpu and memory always fit. A node
is taken in the order of names, without scores. Messages are those of kube-scheduler 1.37.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tesela.core.allocator import (
    Allocated,
    Fatal,
    Slice,
    Unallocatable,
    Undecided,
    allocate,
    apply_taint_rules,
    parse_allocated,
    parse_claim,
    parse_class,
    parse_node,
    parse_slices,
    render_allocation,
)
from tesela.core.errors import ApiConflict, ApiError, ApiNotFound
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.loop import Loop, change_status, with_condition
from tesela.edge.embedded.node_fit import allocation_reaches, node_refusal
from tesela.edge.embedded.pod_claims import (
    FINALIZER,
    claim_names,
    is_finished,
    is_owned_by,
    is_reserved_for,
    reservation,
)
from tesela.edge.kube.port import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Json,
)

PERIOD_S = 1.0
NAME = "default-scheduler"
NOT_AVAILABLE = "resourceclaim not available on the node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Why a pod is not scheduled: the reason and message of its condition PodScheduled."""

    reason: str
    message: str


class Scheduler:
    """Runs from `start` to `close`; `sync` is one pass over all pending pods, for tests that want no thread."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._parsed: dict[str, tuple[str, Slice]] = {}
        self._loop = Loop("scheduler", cluster, self.sync, PERIOD_S)

    def start(self) -> None:
        """Starts scheduling."""
        self._loop.start()

    def close(self) -> None:
        """Stops, bounded; raises what it failed with."""
        self._loop.close()

    def sync(self) -> None:
        """One try for each pod that has no node; a conflict ends the pass, so that no later pod overtakes."""
        for pod in self._cluster.peek(PODS):
            if _is_pending(pod):
                waits = self._schedule(pod)
                if waits is not None:
                    self._tell(pod, waits)

    def _schedule(self, pod: Json) -> Waits | None:
        """Binds the pod, or says why not."""
        try:
            claims = self._claims_of(pod)
            if claims is None:
                return None
            node_name = self._find_node(pod, claims)
            if isinstance(node_name, Waits):
                return node_name
            self._cluster.bind(pod, node_name)
        except ApiConflict:
            raise
        except ApiNotFound:
            # the pod or a claim went meanwhile; that has woken the loop
            return None
        except ApiError as error:
            return Waits(reason="SchedulerError", message=error.message)
        return None

    def _claims_of(self, pod: Json) -> list[Json] | None:
        """The pod's claims; None while one is not created, not the pod's own or going away.

        Such a pod is held back before it is tried (PreEnqueue), so its conditions say nothing.
        """
        namespace, found = pod["metadata"]["namespace"], []
        for _, claim_name, from_template in claim_names(pod):
            if claim_name is None:
                return None
            # ApiNotFound holds the pod back as well
            claim = self._cluster.get(RESOURCE_CLAIMS, claim_name, namespace)
            if claim["metadata"].get("deletionTimestamp") or (from_template and not is_owned_by(claim, pod)):
                return None
            found.append(claim)
        return found

    def _missing_class(self, claims: list[Json]) -> str | None:
        """Why no node can do, in the scheduler's words: a class that an open claim asks for does not exist."""
        classes = {entry["metadata"]["name"] for entry in self._cluster.peek(DEVICE_CLASSES)}
        for claim in claims:
            for request in parse_claim(claim).requests if "allocation" not in claim["status"] else ():
                for demand in request.demands:
                    if demand.device_class not in classes:
                        return f"request {demand.result_name}: device class {demand.device_class} does not exist"
        return None

    def _find_node(self, pod: Json, claims: list[Json]) -> str | Waits:
        """The first node that has everything; its devices are then written into the claims."""
        if missing := self._missing_class(claims):
            return _no_node(missing, len(self._cluster.peek(NODES)))
        reasons: Counter[str] = Counter()
        nodes = sorted(self._cluster.peek(NODES), key=lambda node: str(node["metadata"]["name"]))
        for node in nodes:
            refusal = node_refusal(pod, node) or self._already_elsewhere(claims, node)
            if refusal is not None:
                reasons[refusal] += 1
                continue
            open_claims = [claim for claim in claims if "allocation" not in claim["status"]]
            verdict = self._allocate(open_claims, node)
            match verdict:
                case Allocated():
                    for claim, answer in zip(open_claims, verdict.claims, strict=True):
                        self._write(claim, {**render_allocation(answer)}, pod)
                    self._reserve([claim for claim in claims if "allocation" in claim["status"]], pod)
                    return str(node["metadata"]["name"])
                case Unallocatable():
                    reasons[verdict.reason] += 1
                case Fatal():
                    text = f'running "DynamicResources" filter plugin: {verdict.message}'
                    return Waits(reason="SchedulerError", message=text)
                case Undecided():
                    text = f"the embedded allocator cannot decide: {verdict.what}; try this claim on a real cluster"
                    return Waits(reason="SchedulerError", message=text)
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return _no_node(counts, len(nodes))

    def _already_elsewhere(self, claims: list[Json], node: Json) -> str | None:
        allocations = [claim["status"]["allocation"] for claim in claims if "allocation" in claim["status"]]
        return None if all(allocation_reaches(entry, node) for entry in allocations) else NOT_AVAILABLE

    def _allocate(self, claims: list[Json], node: Json) -> Allocated | Unallocatable | Fatal | Undecided:
        if not claims:
            return Allocated(claims=())
        return allocate(
            [parse_claim(claim) for claim in claims],
            {entry["metadata"]["name"]: parse_class(entry) for entry in self._cluster.peek(DEVICE_CLASSES)},
            self._slices(),
            parse_node(node),
            parse_allocated(self._cluster.peek(RESOURCE_CLAIMS)),
        )

    def _slices(self) -> Sequence[Slice]:
        """All slices, parsed once per version, with the taints of DeviceTaintRules."""
        parsed = {}
        for document in self._cluster.peek(RESOURCE_SLICES):
            uid, version = document["metadata"]["uid"], document["metadata"]["resourceVersion"]
            known = self._parsed.get(uid)
            parsed[uid] = known if known and known[0] == version else (version, parse_slices([document])[0])
        self._parsed = parsed
        return apply_taint_rules([entry for _, entry in parsed.values()], self._cluster.peek(DEVICE_TAINT_RULES))

    def _write(self, claim: Json, allocation: Json, pod: Json) -> None:
        """Finalizer first, so that an allocated claim is always protected."""
        metadata = claim["metadata"]
        if FINALIZER not in metadata.get("finalizers", []):
            finalizers = [*metadata.get("finalizers", []), FINALIZER]
            claim = self._cluster.replace(
                RESOURCE_CLAIMS, {**claim, "metadata": {**metadata, "finalizers": finalizers}}
            )
        status = {
            **claim["status"],
            "allocation": {**allocation, "allocationTimestamp": self._cluster.timestamp()},
            "reservedFor": [reservation(pod)],
        }
        self._cluster.replace_status(RESOURCE_CLAIMS, {**claim, "status": status})

    def _reserve(self, claims: list[Json], pod: Json) -> None:
        for claim in claims:
            if not is_reserved_for(claim, pod):
                reserved = [*claim["status"].get("reservedFor", []), reservation(pod)]
                self._cluster.replace_status(
                    RESOURCE_CLAIMS, {**claim, "status": {**claim["status"], "reservedFor": reserved}}
                )

    def _tell(self, pod: Json, waits: Waits) -> None:
        now = self._cluster.timestamp()

        def change(newest: Json) -> Json | None:
            if newest["spec"].get("nodeName"):
                return None
            return with_condition(newest["status"], "PodScheduled", "False", waits.reason, waits.message, now)

        change_status(self._cluster, PODS, pod, change)


def _is_pending(pod: Json) -> bool:
    spec, metadata = pod["spec"], pod["metadata"]
    wants = spec["schedulerName"] == NAME and not metadata.get("deletionTimestamp") and not is_finished(pod)
    return wants and not spec.get("nodeName")


def _no_node(why: str, node_count: int) -> Waits:
    if not node_count:
        return Waits(reason="Unschedulable", message="no nodes available to schedule pods")
    helpless = f"0/{node_count} nodes are available: {node_count} Preemption is not helpful for scheduling."
    text = f"0/{node_count} nodes are available: {why}. preemption: {helpless}"
    return Waits(reason="Unschedulable", message=text)
