"""A stand-in kubelet: registers drivers over their sockets, prepares its pods' claims, records what containers get.

Runs no container: a pod is Running once its claims are prepared, and ends when it is deleted or `finish` says so.
Rules: pkg/kubelet and pkg/kubelet/cm/dra of Kubernetes 1.37; periods are shorter and set by the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from time import monotonic

from tesela.core.errors import ApiConflict, ApiNotFound
from tesela.edge.embedded.claim_cache import ClaimCache
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.containers import InjectedContainer
from tesela.edge.embedded.loop import Loop
from tesela.edge.embedded.plugins import Plugins
from tesela.edge.embedded.pod_claims import is_finished
from tesela.edge.embedded.pod_worker import PodState, PodWorker
from tesela.edge.kube.port import NODES, PODS, RESOURCE_SLICES, Json

WORKERS = 8
WIPE_DELAY_S = 30.0

_log = logging.getLogger(__name__)


class EmbeddedKubelet:
    """The kubelet of `node_name`, from `start` to `close`.

    `registry_dir` is watched for registrar sockets, `cdi_dir` is what its runtime reads. A failed prepare or unprepare
    is tried again after `retry_s`, and a stream of device health that ended opened again; slices of a driver that went
    are wiped after `wipe_delay_s`; `poll_s` is how often the registry is looked at.
    """

    def __init__(
        self,
        cluster: EmbeddedCluster,
        node_name: str,
        *,
        registry_dir: Path,
        cdi_dir: Path,
        retry_s: float = 1.0,
        poll_s: float = 0.1,
        wipe_delay_s: float = WIPE_DELAY_S,
    ) -> None:
        self.node_name = node_name
        self.plugins = Plugins(registry_dir, on_health=cluster.wake, reopen_s=retry_s)
        self.claims = ClaimCache()
        self._cluster = cluster
        self._retry_s = retry_s
        self._wipe_delay_s = wipe_delay_s
        self._wipe_at: dict[str, float] = {}
        self._lock = Lock()
        self._states: dict[str, PodState] = {}
        self._busy: set[str] = set()
        self._failures: list[Exception] = []
        self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="kubelet")
        self._worker = PodWorker(cluster, self.plugins, self.claims, cdi_dir)
        self._loop = Loop("kubelet", cluster, self._step, poll_s)

    def start(self) -> None:
        """Creates the Node if it is absent, wipes its slices as every kubelet does, and begins to work."""
        self._ensure_node()
        self._wipe(f"spec.nodeName={self.node_name}")
        self._loop.start()

    def close(self) -> None:
        """Stops; pods and claims stay as they are. Raises what the loop or a worker failed with."""
        try:
            self._loop.close()
        finally:
            # ends the calls under way, so that no worker is waited for longer than its next step
            self.plugins.forget()
            self._executor.shutdown(wait=True, cancel_futures=True)
        if self._failures:
            raise self._failures[0]

    def restart(self) -> None:
        """As if the kubelet's process were replaced: slices wiped, drivers registered anew, nothing known as prepared.

        Running pods stay; the next pod that needs a claim has it prepared again.
        """
        self.plugins.forget()
        self.claims.restart()
        self._wipe(f"spec.nodeName={self.node_name}")

    def containers(self, pod: Json) -> dict[str, InjectedContainer]:
        """What each container of a running pod got, by its name; empty before the pod runs and after it ended."""
        with self._lock:
            state = self._states.get(pod["metadata"]["uid"])
        return dict(state.injected) if state else {}

    def finish(self, namespace: str, name: str, *, failed: bool = False) -> None:
        """Lets the pod's containers exit; its claims are unprepared, then it is Succeeded or Failed. ApiNotFound."""
        pod = self._cluster.get(PODS, name, namespace)
        with self._lock:
            self._state(pod).exit_phase = "Failed" if failed else "Succeeded"

    def _step(self) -> None:
        came, went = self.plugins.sync()
        self._plan_wipes(came, went)
        pods = {pod["metadata"]["uid"]: pod for pod in self._cluster.peek(PODS) if self._is_ours(pod)}
        for pod in pods.values():
            self._submit(pod, gone=False)
        for uid in self.claims.pod_uids() - set(pods):
            # deleted by force: the object is gone, the devices are not
            self._submit({"metadata": {"uid": uid}}, gone=True)
        self._show_health(pods.values())
        with self._lock:
            known = set(pods) | self.claims.pod_uids() | self._busy
            for uid in set(self._states) - known:
                del self._states[uid]

    def _show_health(self, pods: Iterable[Json]) -> None:
        version = self.plugins.health.version
        for pod in pods:
            with self._lock:
                state = self._states.get(pod["metadata"]["uid"])
            shows = pod["status"].get("phase") == "Running"
            if shows and state is not None and state.running and state.health_version != version:
                self._worker.show_health(pod)
                state.health_version = version

    def _is_ours(self, pod: Json) -> bool:
        return bool(pod["spec"].get("nodeName") == self.node_name)

    def _submit(self, pod: Json, *, gone: bool) -> None:
        """Hands the pod to a worker if there is something to do, it is not with one already, and not waiting."""
        uid = pod["metadata"]["uid"]
        with self._lock:
            state = self._state(pod)
            ends = gone or bool(pod["metadata"].get("deletionTimestamp")) or state.exit_phase is not None
            idle = is_finished(pod) and "deletionTimestamp" not in pod["metadata"]
            nothing_to_do = not gone and (idle or (state.running and not ends))
            if uid in self._busy or nothing_to_do or monotonic() < state.retry_at:
                return
            self._busy.add(uid)
        work: Callable[[Json, PodState], bool] = self._worker.stop if ends else self._worker.run
        self._executor.submit(self._work, work, pod, state)

    def _work(self, work: Callable[[Json, PodState], bool], pod: Json, state: PodState) -> None:
        uid = pod["metadata"]["uid"]
        done = False
        try:
            done = work(pod, state)
        except (ApiConflict, ApiNotFound) as error:
            _log.debug("pod %s: %s; looks again", uid, error)
        except Exception as error:  # noqa: BLE001 - nobody waits for this future; `close` raises it
            _log.exception("pod %s", uid)
            self._failures.append(error)
        finally:
            with self._lock:
                state.retry_at = 0.0 if done else monotonic() + self._retry_s
                self._busy.discard(uid)
                if state.ended:
                    self._states.pop(uid, None)

    def _state(self, pod: Json) -> PodState:
        return self._states.setdefault(pod["metadata"]["uid"], PodState())

    def _plan_wipes(self, came: frozenset[str], went: frozenset[str]) -> None:
        now = monotonic()
        self._wipe_at |= dict.fromkeys(went, now + self._wipe_delay_s)
        for driver in came:
            self._wipe_at.pop(driver, None)
        for driver in [driver for driver, due in self._wipe_at.items() if due <= now]:
            del self._wipe_at[driver]
            self._wipe(f"spec.nodeName={self.node_name},spec.driver={driver}")

    def _wipe(self, selector: str) -> None:
        for found in self._cluster.list(RESOURCE_SLICES, field_selector=selector).items:
            try:
                self._cluster.delete(RESOURCE_SLICES, found["metadata"]["name"], uid=found["metadata"]["uid"])
            except (ApiNotFound, ApiConflict):
                # its owner removed or replaced it meanwhile
                continue

    def _ensure_node(self) -> None:
        try:
            self._cluster.get(NODES, self.node_name)
        except ApiNotFound:
            labels = {"kubernetes.io/hostname": self.node_name}
            conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
            node = {"metadata": {"name": self.node_name, "labels": labels}, "status": {"conditions": conditions}}
            self._cluster.create(NODES, node)
