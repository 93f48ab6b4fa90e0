"""What the demo does, step by step, and the facts that each step found. Says nothing on a screen.

A step waits for what it names, bounded, and checks it: a demo that ends well has shown what it claims.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tesela.cli.demo_bridge import (
    BRIDGE_NAMESPACE,
    BRIDGE_POD,
    BRIDGE_PROFILES,
    ModelProfiles,
    plan_bridge_profiles,
    plan_job_profiles,
    render_bridge,
    render_job_namespace,
)
from tesela.cli.demo_node import DemoNode
from tesela.cli.demo_pods import DemoPods, Holding, PodName
from tesela.cli.mig_map import WHOLE, MapRow
from tesela.core.errors import StateError
from tesela.edge.kube.port import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Json

STEPS: Final = {
    "discover": "looking at the GPUs",
    "publish": "publishing what they can be cut into",
    "allocate": "applying the bridge, finding it a device",
    "prepare": "cutting the partition, starting the pod",
    "jobs": "running more claims beside it",
    "free": "ending every pod",
    "restored": "comparing the capacity",
}
"""Names of the steps and what is under way in each, in order."""
BRIDGE: Final = PodName(namespace=BRIDGE_NAMESPACE, name=BRIDGE_POD)
_SHOWN_WAITING: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step done: `sentence` for people, `facts` for machines, `remarks` worth a line; `rows` for a map."""

    name: str
    sentence: str
    facts: Json
    took_s: float = 0.0
    remarks: tuple[str, ...] = ()
    rows: tuple[MapRow, ...] = ()
    holdings: tuple[Holding, ...] = ()


class Story:
    """The demo on a node whose context is entered and whose driver was not started.

    Each iterator raises StateError where something is not as it must be, and TryAgain where it takes too long.
    """

    def __init__(self, node: DemoNode) -> None:
        self.pods = DemoPods(node)
        self._node = node
        self._models = tuple(gpu.model for gpu in node.spec.gpus)
        self._offers_at_start = 0

    def begin(self) -> Iterator[Step]:
        """Starts the driver and the bridge."""
        for make in (self._discover, self._publish, self._allocate, self._prepare):
            yield _timed(make)

    def run_jobs(self, count: int) -> Iterator[Step]:
        """Runs `count` claims of mixed profiles, as far as there is room."""
        yield _timed(lambda: self._jobs(count))

    def end(self) -> Iterator[Step]:
        """Ends every pod and compares the node with how it began."""
        for make in (self._free, self._restored):
            yield _timed(make)

    def _discover(self) -> Step:
        self._node.start()
        roster = self._node.plugin.node.lookout.roster
        gpus = [
            {
                "name": known.name,
                "uuid": known.gpu.uuid,
                "product_name": known.gpu.product_name,
                "mig_enabled": known.gpu.mig_enabled,
                "mig_without_reset": known.gpu.resetless_mig,
            }
            for known in roster.gpus
        ]
        counts = Counter(known.gpu.product_name for known in roster.gpus)
        found = ", ".join(f"{count} x {name}" for name, count in counts.items())
        facts = {"driver_version": roster.driver_version, "gpus": gpus}
        return Step(name="discover", sentence=f"found {found}, driver {roster.driver_version}", facts=facts)

    def _publish(self) -> Step:
        node = self._node
        node.wait_for("register with the kubelet", lambda: bool(node.kubelet.plugins.drivers()))
        node.wait_for("publish the GPUs", node.plugin.publisher.published.is_set)
        slices = node.cluster.peek(RESOURCE_SLICES)
        devices = sum(len(found["spec"].get("devices", [])) for found in slices)
        self._offers_at_start = node.offers()
        pool = slices[0]["spec"]["pool"]["name"]
        facts = {"pool": pool, "slices": len(slices), "devices": devices, "offers": self._offers_at_start}
        sentence = f"published {devices} devices in {len(slices)} ResourceSlices: each partition that can be cut"
        return Step(name="publish", sentence=sentence, facts=facts, rows=node.map_rows())

    def _allocate(self) -> Step:
        chosen = plan_bridge_profiles(self._models)
        profiles = tuple(dict.fromkeys(name for model in chosen for name in (model.small, model.big)))
        for resource, document in render_bridge(profiles):
            self._node.cluster.create(resource, document)
        self._node.wait_for(
            "allocate a device to the bridge",
            lambda: self.pods.find_device(BRIDGE) is not None,
            lambda: self.pods.why(BRIDGE),
        )
        device = self.pods.find_device(BRIDGE)
        facts = {"pod": str(BRIDGE), "approved_profiles": list(profiles), "device": device}
        sentence = f"the bridge asks for {' or '.join(profiles)} and is given {device}"
        return Step(name="allocate", sentence=sentence, facts=facts, remarks=_explain_profiles(chosen, profiles))

    def _prepare(self) -> Step:
        node = self._node
        node.wait_for("run the bridge", lambda: self.pods.runs(BRIDGE), lambda: self.pods.why(BRIDGE))
        holding = self.pods.holding(BRIDGE)
        pod = node.cluster.get(PODS, BRIDGE.name, BRIDGE.namespace)
        inside = node.kubelet.containers(pod)[pod["spec"]["containers"][0]["name"]]
        if holding.mig_uuid is None or holding.mig_uuid not in inside.env.values():
            raise StateError(f"the bridge runs, but its environment does not name its partition {holding.mig_uuid}")
        facts = {
            **_render_holding(holding),
            "pod": str(BRIDGE),
            "phase": "Running",
            "cdi_ids": list(inside.cdi_ids),
            "device_nodes": list(inside.device_nodes),
            "env": inside.env,
        }
        nodes = len(inside.device_nodes)
        sentence = f"the bridge runs on a new {holding.profile} and sees it alone, through {nodes} device nodes"
        return Step(name="prepare", sentence=sentence, facts=facts, remarks=(f"its MIG device is {holding.mig_uuid}",))

    def _jobs(self, count: int) -> Step:
        jobs = self._apply_jobs(count)
        running = [job for job in jobs if self.pods.runs(job)]
        waiting = [job for job in jobs if job not in running]
        holdings = tuple(self.pods.holding(pod) for pod in (BRIDGE, *running))
        facts = {
            "claims": count,
            "running": [_render_holding(holding) for holding in holdings],
            "waiting": [{"pod": job.name, "profile": jobs[job] or WHOLE, "why": self.pods.why(job)} for job in waiting],
            "not_applied": count - len(jobs),
        }
        remarks = [f"{job.name} waits: no {jobs[job] or WHOLE} is free" for job in waiting[:_SHOWN_WAITING]]
        if len(waiting) > _SHOWN_WAITING:
            remarks.append(f"and {len(waiting) - _SHOWN_WAITING} more wait, for other profiles")
        if len(jobs) < count:
            remarks.append(f"{count - len(jobs)} were not applied: one claim waits for each profile already")
        return Step(
            name="jobs",
            sentence=f"{len(running)} more claims run beside the bridge",
            facts=facts,
            remarks=tuple(remarks),
            rows=self._node.map_rows(),
            holdings=holdings,
        )

    def _apply_jobs(self, count: int) -> dict[PodName, str]:
        """Up to `count` jobs and what each asks for, all settled, every profile in turn.

        Nothing ends meanwhile, so a profile that one job waits for is not asked for again.
        """
        jobs: dict[PodName, str] = {}
        open_profiles = list(plan_job_profiles(self._models))
        while open_profiles and len(jobs) < count:
            batch = [
                self.create_job(number, profile)
                for number, profile in zip(range(len(jobs) + 1, count + 1), open_profiles, strict=False)
            ]
            jobs |= dict(zip(batch, open_profiles, strict=False))
            self._wait_until_settled(batch)
            open_profiles = [jobs[job] for job in batch if self.pods.runs(job)]
        return jobs

    def _wait_until_settled(self, jobs: Sequence[PodName]) -> None:
        def list_unsettled() -> list[PodName]:
            return [job for job in jobs if not self.pods.settled(job)]

        def explain() -> str:
            return "; ".join(f"{job}: {self.pods.why(job)}" for job in list_unsettled()[:_SHOWN_WAITING])

        self._node.wait_for("start the jobs", lambda: not list_unsettled(), explain)

    def create_job(self, number: int, profile: str) -> PodName:
        """Applies job `number`; the first makes the namespace."""
        if number == 1:
            self._node.cluster.create(*render_job_namespace())
        return self.pods.create_job(f"job-{number}", profile)

    def _free(self) -> Step:
        node, pods = self._node, self.pods.list_all()
        for pod in pods:
            self.pods.delete(pod)
        node.wait_for(
            "free everything",
            lambda: not (self.pods.list_all() or node.cluster.peek(RESOURCE_CLAIMS) or node.leftovers()),
            self._why_not_free,
        )
        sentence = f"ended {len(pods)} pods: no partition, no record and no CDI file is left"
        facts = {"pods": len(pods), "partitions": 0, "records": 0, "cdi_files": 0}
        return Step(name="free", sentence=sentence, facts=facts, rows=node.map_rows())

    def _restored(self) -> Step:
        offers = self._node.offers()
        if offers != self._offers_at_start:
            raise StateError(f"capacity was lost: {offers} devices are free, {self._offers_at_start} were at the start")
        facts = {"offers_at_start": self._offers_at_start, "offers": offers, "restored": True}
        return Step(name="restored", sentence=f"the capacity came back: all {offers} devices are free", facts=facts)

    def _why_not_free(self) -> str:
        complaints = [f"{pod}: {self.pods.why(pod)}" for pod in self.pods.list_all()]
        return "; ".join((*complaints, *self._node.leftovers()))


def _explain_profiles(chosen: Sequence[ModelProfiles], profiles: tuple[str, ...]) -> tuple[str, ...]:
    """That the manifest was changed for this node's models, and how."""
    if profiles == BRIDGE_PROFILES:
        return ()
    named = "; ".join(f"on {one.model} {one.small} and {one.big}{_no_3g(one)}" for one in chosen)
    return (f"the shipped manifest names {' and '.join(BRIDGE_PROFILES)}; {named}",)


def _no_3g(profiles: ModelProfiles) -> str:
    return "" if profiles.big.startswith("3g.") else " (it has no 3g)"


def _render_holding(holding: Holding) -> Json:
    return {
        "pod": holding.pod,
        "profile": holding.profile,
        "device": holding.device,
        "mig_uuid": holding.mig_uuid,
    }


def _timed(make: Callable[[], Step]) -> Step:
    began_s = time.monotonic()
    return replace(make(), took_s=time.monotonic() - began_s)
