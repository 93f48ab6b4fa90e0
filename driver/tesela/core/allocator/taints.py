"""Device taints: which keep a request away, and how DeviceTaintRules add to what slices say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tesela.core.allocator.model import Demand, Device, Slice, Taint, Toleration
from tesela.core.allocator.parse import parse_taint

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})


def taints_prevent(device: Device, demand: Demand) -> bool:
    """Whether a NoSchedule or NoExecute taint is not tolerated; admin access does not help."""
    return any(
        taint.effect in _KEEPS_AWAY and not any(_tolerates(toleration, taint) for toleration in demand.tolerations)
        for taint in device.taints
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False


def apply_taint_rules(slices: Sequence[Slice], rules: Sequence[Mapping[str, Any]]) -> tuple[Slice, ...]:
    """The slices with the taints of DeviceTaintRules (API JSON) added to the devices that they select.

    A rule without deviceSelector selects nothing, an empty one selects every device (Kubernetes 1.37.1 on).
    """
    taints = [(selector, parse_taint(spec["taint"])) for selector, spec in map(_selector_and_spec, rules)]
    taints = [(selector, taint) for selector, taint in taints if selector is not None]
    if not taints:
        return tuple(slices)
    return tuple(
        replace(piece, devices=tuple(_with_taints(device, taints) for device in piece.devices)) for piece in slices
    )


def _selector_and_spec(rule: Mapping[str, Any]) -> tuple[Mapping[str, str] | None, Mapping[str, Any]]:
    spec = rule["spec"]
    return spec.get("deviceSelector"), spec


def _with_taints(device: Device, taints: Sequence[tuple[Mapping[str, str] | None, Taint]]) -> Device:
    added = tuple(
        taint
        for selector, taint in taints
        if selector is not None
        and all(
            selector.get(key) in {None, value}
            for key, value in (("driver", device.id.driver), ("pool", device.id.pool), ("device", device.id.device))
        )
    )
    return replace(device, taints=(*device.taints, *added)) if added else device
