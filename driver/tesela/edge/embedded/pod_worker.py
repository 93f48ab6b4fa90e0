"""What the kubelet does with one pod: prepare its claims and start it, or stop it and unprepare them.

The order of calls and the sentences are the kubelet's (pkg/kubelet/cm/dra/manager.go of Kubernetes 1.37). One worker
at a time has a pod; two pods that share a claim may meet in the claim cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from tesela.core.errors import ApiError, ApiNotFound, TryAgain
from tesela.core.model import Refusal
from tesela.edge.embedded.claim_cache import CachedClaim, ClaimCache
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.containers import InjectedContainer, cdi_ids_of, inject
from tesela.edge.embedded.device_health import render_container_statuses
from tesela.edge.embedded.loop import change_status, with_condition, without_condition
from tesela.edge.embedded.plugins import Plugins
from tesela.edge.embedded.pod_claims import claim_names, is_finished, is_owned_by, is_reserved_for
from tesela.edge.kube.port import PODS, RESOURCE_CLAIMS, Json

FAILED_PREPARE = "FailedPrepareDynamicResources"
FAILED_UNPREPARE = "FailedUnprepareDynamicResources"
PREFIX = "Failed to prepare dynamic resources: prepare dynamic resources: "


@dataclass(slots=True)
class PodState:
    """What the kubelet knows of a pod. `exit_phase` is set once its containers ended.

    `health_version` is that of the device health which the pod's status shows.
    """

    injected: dict[str, InjectedContainer] = field(default_factory=dict)
    running: bool = False
    ended: bool = False
    exit_phase: str | None = None
    retry_at: float = 0.0
    health_version: int = 0


class PodWorker:
    """Runs and stops pods."""

    def __init__(self, cluster: EmbeddedCluster, plugins: Plugins, claims: ClaimCache, cdi_dir: Path) -> None:
        self._cluster = cluster
        self._plugins = plugins
        self._claims = claims
        self._cdi_dir = cdi_dir
        self._claim_locks: dict[str, Lock] = {}
        self._claim_locks_lock = Lock()

    def run(self, pod: Json, state: PodState) -> bool:
        """Prepares all claims and marks the pod Running; False after a failure, which stands in a condition."""
        try:
            claims = self._fetch(pod)
            entries = [(name, self._claims.use(claim, pod["metadata"]["uid"])) for name, claim in claims]
            self._prepare([entry for _, entry in entries])
            state.injected = self._inject(pod, entries)
        except (TryAgain, ApiError) as error:
            self._tell(pod, FAILED_PREPARE, PREFIX + str(error))
            return False
        state.running = True
        self._mark_running(pod)
        return True

    def stop(self, pod: Json, state: PodState) -> bool:
        """Unprepares what no other pod uses, then lets the pod end; False after a failure."""
        state.running, state.injected = False, {}
        entries = self._claims.last_of(pod["metadata"]["uid"])
        if problem := self._unprepare(entries):
            if "name" in pod["metadata"]:
                self._tell(pod, FAILED_UNPREPARE, problem)
            return False
        if "name" in pod["metadata"]:
            self._mark_ended(pod, state.exit_phase or "Failed")
        state.ended = state.exit_phase is None or bool(pod["metadata"].get("deletionTimestamp"))
        return True

    def show_health(self, pod: Json) -> None:
        """Writes the health of the pod's devices into the status of its containers, where it differs."""

        def change(status: Json) -> Json | None:
            before = status.get("containerStatuses", [])
            after = self._with_health({**pod, "status": status}, before)
            return {**status, "containerStatuses": after} if after != before else None

        change_status(self._cluster, PODS, pod, lambda newest: change(newest["status"]))

    def _with_health(self, pod: Json, statuses: Sequence[Json]) -> list[Json]:
        used, namespace = self._claims.used_by(pod["metadata"]["uid"]), pod["metadata"]["namespace"]
        claims = {
            name: used[namespace, claim_name]
            for name, claim_name, _ in claim_names(pod)
            if claim_name is not None and (namespace, claim_name) in used
        }
        return render_container_statuses(pod, statuses, claims, self._plugins.health)

    def _fetch(self, pod: Json) -> list[tuple[str, Json]]:
        """(the pod's name for it, the claim) of every claim, each allocated and reserved for the pod."""
        found, namespace = [], pod["metadata"]["namespace"]
        for pod_claim_name, claim_name, from_template in claim_names(pod):
            if claim_name is None:
                raise TryAgain(f"ResourceClaim for {pod_claim_name} not created yet")
            try:
                claim = self._cluster.get(RESOURCE_CLAIMS, claim_name, namespace)
            except ApiNotFound as error:
                raise TryAgain(f"fetch ResourceClaim {claim_name}: {error.message}") from error
            if from_template and not is_owned_by(claim, pod):
                raise TryAgain(f"ResourceClaim {claim_name} was not created for pod {pod['metadata']['name']}")
            if "allocation" not in claim["status"]:
                raise TryAgain(f"ResourceClaim {claim_name}: not allocated")
            if not is_reserved_for(claim, pod):
                text = f"pod {pod['metadata']['name']} is not allowed to use ResourceClaim {claim_name}"
                raise TryAgain(text)
            found.append((pod_claim_name, claim))
        return found

    def _prepare(self, entries: Sequence[CachedClaim]) -> None:
        """One call per driver for all claims that are not prepared; the first failure ends the attempt."""
        with ExitStack() as held:
            for entry in _by_uid(entries):
                held.enter_context(self._lock_of(entry))
            waiting = [entry for entry in entries if not entry.prepared]
            for driver in dict.fromkeys(driver for entry in waiting for driver in entry.drivers):
                asked = [entry for entry in waiting if driver in entry.drivers]
                answers = self._plugins.client_of(driver).prepare([entry.ref for entry in asked])
                for entry in asked:
                    answer = answers[entry.ref.uid]
                    if isinstance(answer, Refusal):
                        text = f"NodePrepareResources failed for ResourceClaim {entry.ref.name}: {answer.message}"
                        raise TryAgain(text)
                    entry.answers[driver] = answer
            for entry in waiting:
                entry.prepared = True

    def _unprepare(self, entries: Sequence[CachedClaim]) -> str | None:
        """One call per driver; the problem, or None once every driver let go of all."""
        problems = []
        for driver in dict.fromkeys(driver for entry in entries for driver in entry.drivers):
            asked = [entry for entry in entries if driver in entry.drivers]
            try:
                answers = self._plugins.client_of(driver).unprepare([entry.ref for entry in asked])
            except TryAgain as error:
                problems.append(str(error))
                continue
            problems += [
                f"NodeUnprepareResources failed for ResourceClaim {entry.ref.name}: {answer}"
                for entry in asked
                if (answer := answers[entry.ref.uid]) is not None
            ]
        if problems:
            return "; ".join(problems)
        self._claims.drop(entries)
        return None

    def _inject(self, pod: Json, entries: Sequence[tuple[str, CachedClaim]]) -> dict[str, InjectedContainer]:
        devices = [
            (name, device.request_names, device.cdi_device_ids)
            for name, entry in entries
            for answer in entry.answers.values()
            for device in answer
        ]
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        return {container["name"]: inject(self._cdi_dir, cdi_ids_of(container, devices)) for container in containers}

    def _lock_of(self, entry: CachedClaim) -> Lock:
        with self._claim_locks_lock:
            return self._claim_locks.setdefault(entry.ref.uid, Lock())

    def _tell(self, pod: Json, reason: str, message: str) -> None:
        """The kubelet's event of that name, as a condition: the embedded cluster has no events."""
        now = self._cluster.timestamp()
        self._change(pod, lambda status: with_condition(status, reason, "True", reason, message, now))

    def _mark_running(self, pod: Json) -> None:
        now = self._cluster.timestamp()

        def change(status: Json) -> Json:
            for reason in (FAILED_PREPARE, FAILED_UNPREPARE):
                status = without_condition(status, reason)
            status = with_condition(status, "Ready", "True", "", "", now)
            started = {"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": now}}}
            statuses = [
                {"name": entry["name"], "image": entry["image"], **started} for entry in pod["spec"]["containers"]
            ]
            shown = self._with_health({**pod, "status": status}, statuses)
            return {**status, "phase": "Running", "startTime": now, "containerStatuses": shown}

        self._change(pod, change)

    def _mark_ended(self, pod: Json, phase: str) -> None:
        """Final phase first: the claim controller frees devices only of pods that are final or gone."""
        now = self._cluster.timestamp()
        code = 0 if phase == "Succeeded" else 1

        def change(status: Json) -> Json:
            status = with_condition(without_condition(status, FAILED_UNPREPARE), "Ready", "False", "", "", now)
            ended = {"ready": False, "started": False, "state": {"terminated": {"exitCode": code, "finishedAt": now}}}
            statuses = [{**entry, **ended} for entry in status.get("containerStatuses", [])]
            return {**status, "phase": phase, "containerStatuses": statuses}

        if not is_finished(pod):
            self._change(pod, change)
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            try:
                self._cluster.delete(
                    PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace_period_s=0
                )
            except ApiNotFound:
                return

    def _change(self, pod: Json, change: Callable[[Json], Json]) -> None:
        change_status(self._cluster, PODS, pod, lambda newest: change(newest["status"]))


def _by_uid(entries: Sequence[CachedClaim]) -> list[CachedClaim]:
    """In one order for everybody, each once, so that two pods with the same claims cannot wait for each other."""
    return [entry for _, entry in sorted({entry.ref.uid: entry for entry in entries}.items())]
