"""The part of kube-controller-manager that ends pods for NoExecute device taints, and says so in DeviceTaintRules.

Rules: pkg/controller/devicetainteviction of Kubernetes 1.37. It deletes pods plainly, without regard to disruption
budgets. A rule of effect None is a dry run: its condition counts what NoExecute would hit. When a claim's pods have to
go is decided in `core/taint_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from tesela.core.taint_rules import NO_EXECUTE, AllocatedDevice, Evicting, list_evicting, selects
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.loop import Loop, change_status, with_condition
from tesela.edge.embedded.pod_claims import claim_names, is_owned_by, is_reserved_for
from tesela.edge.kube.port import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Json

PERIOD_S: Final = 1.0
STATUS_PERIOD_S: Final = 10.0
IN_PROGRESS: Final = "EvictionInProgress"
_CLOSING: Final = (
    "if the effect was NoExecute. This information will not be updated again. "
    "Recreate the DeviceTaintRule to trigger an update."
)


class _Due(NamedTuple):
    """A pod that has to go, when, and the names of the rules for which it has to."""

    pod: Json
    at: datetime
    rules: frozenset[str]


class TaintEviction:
    """Runs from `start` to `close`; `sync` is one look at everything, for tests that want no thread.

    `now` is the wall clock, in UTC.
    """

    def __init__(self, cluster: EmbeddedCluster, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._cluster = cluster
        self._now = now
        self._evicted: dict[str, int] = {}
        self._loop = Loop("taint-eviction", cluster, self.sync, PERIOD_S)

    def start(self) -> None:
        """Starts looking."""
        self._loop.start()

    def close(self) -> None:
        """Stops, bounded; raises what it failed with."""
        self._loop.close()

    def sync(self) -> None:
        """Writes the conditions of rules, then ends the pods whose time has come."""
        rules = self._cluster.peek(DEVICE_TAINT_RULES)
        due = self._list_due(rules)
        for rule in rules:
            self._tell(rule, due)
        for one in due:
            if one.at <= self._now() and not one.pod["metadata"].get("deletionTimestamp"):
                self._evict(one, rules)

    def _list_due(self, rules: Iterable[Json]) -> list[_Due]:
        """The pods that have to go, by the claims that are reserved for them; a pod without a node never has to."""
        taints = _slice_taints(self._cluster.peek(RESOURCE_SLICES))
        claims = {_name(claim): claim for claim in self._cluster.peek(RESOURCE_CLAIMS)}
        due = []
        for pod in self._cluster.peek(PODS):
            if not pod["spec"].get("nodeName"):
                continue
            evicting: list[Evicting] = []
            for _, claim_name, from_template in claim_names(pod):
                claim = claims.get((pod["metadata"]["namespace"], claim_name or ""))
                if claim is None or not is_reserved_for(claim, pod) or (from_template and not is_owned_by(claim, pod)):
                    continue
                evicting.extend(list_evicting(claim, taints, rules))
            if evicting:
                at = min(_time(one.time_added) + timedelta(seconds=one.after_s) for one in evicting)
                due.append(_Due(pod, at, frozenset(one.rule for one in evicting if one.rule)))
        return due

    def _evict(self, one: _Due, rules: Iterable[Json]) -> None:
        message = "Device Taint manager: deleting due to NoExecute taint"
        reason = "DeletionByDeviceTaintManager"
        now = self._cluster.timestamp()
        change_status(
            self._cluster,
            PODS,
            one.pod,
            lambda pod: with_condition(pod["status"], "DisruptionTarget", "True", reason, message, now),
        )
        metadata = one.pod["metadata"]
        self._cluster.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        for rule in rules:
            if rule["metadata"]["name"] in one.rules:
                uid = rule["metadata"]["uid"]
                self._evicted[uid] = self._evicted.get(uid, 0) + 1

    def _tell(self, rule: Json, due: list[_Due]) -> None:
        """Writes the rule's condition; of one generation at most every ten seconds, and once where nothing comes."""
        before = next((one for one in rule["status"].get("conditions", []) if one["type"] == IN_PROGRESS), None)
        generation = rule["metadata"]["generation"]
        effect = rule["spec"]["taint"].get("effect")
        if before is not None and before.get("observedGeneration") == generation:
            young = self._now() - _time(before["lastTransitionTime"]) < timedelta(seconds=STATUS_PERIOD_S)
            if young or effect != NO_EXECUTE:
                return
        status, reason, message = self._describe(rule, due)
        condition = {"type": IN_PROGRESS, "status": status, "reason": reason, "message": message}
        condition |= {"observedGeneration": generation}
        if before is not None and all(before.get(key) == value for key, value in condition.items()):
            return
        condition["lastTransitionTime"] = self._cluster.timestamp()
        change_status(
            self._cluster,
            DEVICE_TAINT_RULES,
            rule,
            lambda newest: None if newest["metadata"]["generation"] != generation else {"conditions": [condition]},
        )

    def _describe(self, rule: Json, due: list[_Due]) -> tuple[str, str, str]:
        """Status, reason and message of the condition, in the controller's words."""
        effect, name = rule["spec"]["taint"].get("effect"), rule["metadata"]["name"]
        status, reason = "False", "OtherEffect"
        parts = []
        evicted = self._evicted.get(rule["metadata"]["uid"], 0)
        if effect == NO_EXECUTE:
            pending = [one.pod for one in due if name in one.rules and not one.pod["metadata"].get("deletionTimestamp")]
            reason = "Completed" if evicted else "NotStarted"
            if pending:
                status, reason = "True", "PodsPendingEviction"
                needs = "1 pod needs" if len(pending) == 1 else f"{len(pending)} pods need"
                parts.append(f"{needs} to be evicted in {_spaces(pending)}.")
        elif effect == "None":
            reason = "NoEffect"
            parts.append(self._simulate(rule))
        else:
            parts.append("Eviction only happens for the NoExecute effect.")
        if evicted:
            parts.append(f"{_count(evicted, 'pod')} evicted since starting the controller.")
        return status, reason, " ".join(parts)

    def _simulate(self, rule: Json) -> str:
        """What the rule would hit with the effect NoExecute; other rules count as they stand."""
        taint = {**rule["spec"]["taint"], "effect": NO_EXECUTE}
        harder = {**rule, "spec": {**rule["spec"], "taint": taint}}
        name = rule["metadata"]["name"]
        pods = [one.pod for one in self._list_due([harder]) if name in one.rules]
        published = sum(selects(rule, device) for device in _list_published(self._cluster.peek(RESOURCE_SLICES)))
        allocated = sum(selects(rule, device) for device in _list_allocated(self._cluster.peek(RESOURCE_CLAIMS)))
        return (
            f"{_count(published, 'published device')} selected. {_count(allocated, 'allocated device')} selected. "
            f"{_count(len(pods), 'pod')} would be evicted in {_spaces(pods)} {_CLOSING}"
        )


def _slice_taints(slices: Iterable[Json]) -> dict[AllocatedDevice, list[Json]]:
    return {
        AllocatedDevice(one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]): device["taints"]
        for one in slices
        for device in one["spec"].get("devices", [])
        if device.get("taints")
    }


def _list_published(slices: Iterable[Json]) -> list[AllocatedDevice]:
    return [
        AllocatedDevice(one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"])
        for one in slices
        for device in one["spec"].get("devices", [])
    ]


def _list_allocated(claims: Iterable[Json]) -> set[AllocatedDevice]:
    return {
        AllocatedDevice(result["driver"], result["pool"], result["device"])
        for claim in claims
        for result in claim["status"].get("allocation", {}).get("devices", {}).get("results", [])
    }


def _name(obj: Json) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _spaces(pods: Iterable[Json]) -> str:
    number = len({pod["metadata"]["namespace"] for pod in pods})
    return "1 namespace" if number == 1 else f"{number} different namespaces"
