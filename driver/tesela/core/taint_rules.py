"""DeviceTaintRules and what NoExecute taints do to claims, as kube-controller-manager's device taint manager does it.

Rules: pkg/controller/devicetainteviction of Kubernetes 1.37. What is decided here is when a claim's pods have to go;
who deletes them is `edge/embedded` in memory, the control plane on a real cluster, and `tesela gpu drain` asks
beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

Json: TypeAlias = Mapping[str, Any]

NO_EXECUTE: Final = "NoExecute"
_SELECTED: Final = ("driver", "pool", "device")


class AllocatedDevice(NamedTuple):
    """A device as an allocation names it."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicting:
    """A NoExecute taint that a claim does not tolerate for ever. `rule` names its DeviceTaintRule, "" for a slice's.

    The claim's pods have to go `after_s` seconds after `time_added`, which is as the API writes times.
    """

    rule: str
    time_added: str
    after_s: int


def selects(rule: Json, device: AllocatedDevice) -> bool:
    """Whether a DeviceTaintRule concerns a device. Without a selector none, with an empty one every (since 1.37.1)."""
    selector = rule["spec"].get("deviceSelector")
    if selector is None:
        return False
    return all(selector.get(key) in {None, getattr(device, key)} for key in _SELECTED)


def list_evicting(
    claim: Json, slice_taints: Mapping[AllocatedDevice, Iterable[Json]], rules: Iterable[Json]
) -> list[Evicting]:
    """The taints for which the pods of an allocated claim have to go; empty where they may stay.

    `slice_taints` is what ResourceSlices say of devices. Claims with admin access are no exception.
    """
    allocation = claim.get("status", {}).get("allocation") or {}
    evicting_rules = [rule for rule in rules if rule["spec"]["taint"].get("effect") == NO_EXECUTE]
    found = []
    for result in allocation.get("devices", {}).get("results", ()):
        device = AllocatedDevice(result["driver"], result["pool"], result["device"])
        for name, taint in _list_taints(device, slice_taints, evicting_rules):
            after_s = tolerated_s(result.get("tolerations", ()), taint)
            if after_s is not None:
                found.append(Evicting(rule=name, time_added=taint.get("timeAdded", ""), after_s=after_s))
    return found


def _list_taints(
    device: AllocatedDevice, slice_taints: Mapping[AllocatedDevice, Iterable[Json]], rules: Iterable[Json]
) -> Iterator[tuple[str, Json]]:
    for taint in slice_taints.get(device, ()):
        if taint.get("effect") == NO_EXECUTE:
            yield "", taint
    for rule in rules:
        if selects(rule, device):
            yield rule["metadata"]["name"], rule["spec"]["taint"]


def tolerated_s(tolerations: Iterable[Json], taint: Json) -> int | None:
    """For how many seconds a NoExecute taint is borne: 0 where not at all, None for ever.

    Only tolerations whose effect is exactly NoExecute count here, unlike at scheduling. One without seconds bears it
    for ever; else the least counts, and less than nothing is nothing.
    """
    least_s: int | None = None
    for toleration in tolerations:
        if not _tolerates(toleration, taint):
            continue
        seconds = toleration.get("tolerationSeconds")
        if seconds is None:
            return None
        least_s = max(int(seconds), 0) if least_s is None else min(max(int(seconds), 0), least_s)
    return least_s or 0


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") != NO_EXECUTE:
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    match toleration.get("operator", "Equal"):
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("value", "") == taint.get("value", ""))
        case _:
            return False
