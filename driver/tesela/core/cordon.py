"""Take devices out of service by DeviceTaintRules: which devices a name means, a rule for each, and whom that hits.

Every rule selects one device by driver, pool and name, so that none can hit more than it says. `tesela gpu` performs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tesela.core.errors import StateError
from tesela.core.model import DRIVER_NAME
from tesela.core.naming import parse_device_name
from tesela.core.slices.state import render_label_value
from tesela.core.taint_rules import NO_EXECUTE, AllocatedDevice, tolerated_s

Json: TypeAlias = Mapping[str, Any]

CORDON_KEY: Final = "gpu.nvidia.com/cordoned"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
GPU_LABEL: Final = "gpu.nvidia.com/gpu"
REASON: Final = "gpu.nvidia.com/reason"
_MANAGER: Final = "tesela"
_MAX_NAME: Final = 253


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Target:
    """A published device, and the UUID of the GPU that it is or is a part of."""

    pool: str
    device: str
    gpu_uuid: str

    @property
    def id(self) -> AllocatedDevice:
        """As allocations name it."""
        return AllocatedDevice(DRIVER_NAME, self.pool, self.device)

    @property
    def rule_name(self) -> str:
        """The name of its rule: the same whoever asks, and no other device's. A device's name has no dots."""
        return _fit(f"tesela.{self.device}.", self.pool)

    @property
    def dry_run_name(self) -> str:
        """The name of the rule that only counts; a cordon stands beside it."""
        return _fit(f"tesela-dry-run.{self.device}.", self.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A claim that holds a target. `pods` are those that may use it, as namespace/name.

    `bears_s` is for how many seconds it bears a NoExecute taint of ours; None: for ever.
    """

    device: str
    claim: str
    pods: tuple[str, ...]
    bears_s: int | None


def _fit(head: str, pool: str) -> str:
    name = head + pool
    if len(name) <= _MAX_NAME:
        return name
    return head + hashlib.sha256(pool.encode()).hexdigest()[:32]


def find_targets(slices: Iterable[Json], named: str, node: str | None = None) -> tuple[Target, ...]:
    """The devices that `named` means: all of a GPU by its UUID or as `gpu-N`, or one by its name or MIG UUID.

    StateError: no device, or devices of several nodes, and `node` says not which.
    """
    offered = sorted(set(_list_devices(slices, node)))
    by_gpu = [one for one, _ in offered if named in {one.gpu_uuid, _gpu_name(one.device)}]
    found = by_gpu or [one for one, uuid in offered if named in {one.device, uuid}]
    where = f"node {node}" if node else "any node"
    if not found:
        gpus = sorted({f"{_gpu_name(one.device)} on {one.pool} ({one.gpu_uuid})" for one, _ in offered})
        known = ", ".join(gpus[:16]) or "no GPU at all"
        raise StateError(
            f"{named!r} is no GPU and no device that {DRIVER_NAME} publishes on {where}; it publishes {known}"
        )
    pools = sorted({one.pool for one in found})
    if len(pools) > 1:
        raise StateError(f"{named!r} is on nodes {', '.join(pools)}: say which by --node")
    return tuple(found)


def _list_devices(slices: Iterable[Json], node: str | None) -> Iterator[tuple[Target, str]]:
    """Every published device of ours, with its own UUID."""
    for piece in slices:
        spec = piece["spec"]
        if spec.get("driver") != DRIVER_NAME or (node is not None and spec.get("nodeName") != node):
            continue
        for device in spec.get("devices") or ():
            attributes = device.get("attributes") or {}
            gpu_uuid = attributes.get("parentUUID", {}).get("string", "")
            uuid = attributes.get("uuid", {}).get("string", "")
            yield Target(pool=spec["pool"]["name"], device=device["name"], gpu_uuid=gpu_uuid or uuid), uuid


def _gpu_name(device: str) -> str:
    name = parse_device_name(device)
    return f"gpu-{name.number}" if name is not None else ""


def find_uses(targets: Iterable[Target], claims: Iterable[Json], taint: Json) -> tuple[Use, ...]:
    """Who holds the targets, and for how long each would bear `taint`."""
    wanted = {one.id for one in targets}
    found = []
    for claim in claims:
        metadata, status = claim["metadata"], claim.get("status") or {}
        for result in (status.get("allocation") or {}).get("devices", {}).get("results") or ():
            device = AllocatedDevice(result["driver"], result["pool"], result["device"])
            if device not in wanted:
                continue
            reserved = [one for one in status.get("reservedFor") or () if one.get("resource") == "pods"]
            found.append(
                Use(
                    device=device.device,
                    claim=f"{metadata['namespace']}/{metadata['name']}",
                    pods=tuple(sorted(f"{metadata['namespace']}/{one['name']}" for one in reserved)),
                    bears_s=tolerated_s(result.get("tolerations") or (), taint),
                )
            )
    return tuple(sorted(found, key=lambda use: (use.device, use.claim)))


def render_taint(effect: str, reason: str) -> dict[str, str]:
    """The taint of a cordon."""
    value = render_label_value(reason)
    return {"key": CORDON_KEY, "effect": effect, **({"value": value} if value else {})}


def render_rule(target: Target, effect: str, reason: str, *, dry_run: bool = False) -> dict[str, Any]:
    """The DeviceTaintRule of one device. With `dry_run` it only counts, whatever `effect` is."""
    return {
        "metadata": {
            "name": target.dry_run_name if dry_run else target.rule_name,
            "labels": {MANAGED_BY: _MANAGER, **_label(target.gpu_uuid)},
            "annotations": {REASON: reason},
        },
        "spec": {
            "deviceSelector": {"driver": DRIVER_NAME, "pool": target.pool, "device": target.device},
            "taint": render_taint("None" if dry_run else effect, reason),
        },
    }


def _label(gpu_uuid: str) -> dict[str, str]:
    value = render_label_value(gpu_uuid)
    return {GPU_LABEL: value} if value else {}


def plan_rule(existing: Json | None, target: Target, effect: str, reason: str) -> dict[str, Any] | None:
    """The rule as it is to be written: the existing one changed, or a new one; None where it stands so already.

    A rule that evicts is not made milder by a cordon: for that there is uncordon. Nor is it touched for another reason,
    since its time would begin anew, which evictions count from. StateError: its name is taken.
    """
    wanted = render_rule(target, effect, reason)
    if existing is None:
        return wanted
    if not is_ours(existing):
        raise StateError(
            f"DeviceTaintRule {target.rule_name} exists and is not of tesela's making: rename or delete it"
        )
    before = existing["spec"]["taint"]
    same_reason = (existing["metadata"].get("annotations") or {}).get(REASON) == reason
    if before["effect"] == NO_EXECUTE or (effect == before["effect"] and same_reason):
        return None
    annotations = {**(existing["metadata"].get("annotations") or {}), REASON: reason}
    metadata = {**existing["metadata"], "annotations": annotations}
    # The taint without its old time: the server sets the time of the new effect, which evictions count from.
    return {**existing, "metadata": metadata, "spec": wanted["spec"]}


def is_ours(rule: Json) -> bool:
    """Whether `tesela gpu` made this rule."""
    labels = rule["metadata"].get("labels") or {}
    return bool(labels.get(MANAGED_BY) == _MANAGER and rule["spec"]["taint"]["key"] == CORDON_KEY)


def find_rules(rules: Iterable[Json], named: str, node: str | None, targets: Iterable[Target]) -> tuple[Json, ...]:
    """Our rules for a GPU or device, also one that is published no longer. StateError: of several nodes.

    `targets` are what the name means among published devices, if anything.
    """
    names = {name for one in targets for name in (one.rule_name, one.dry_run_name)}
    found = []
    for rule in filter(is_ours, rules):
        selector = rule["spec"].get("deviceSelector") or {}
        device, pool = selector.get("device", ""), selector.get("pool", "")
        labels = rule["metadata"]["labels"]
        meant = rule["metadata"]["name"] in names or named in {device, _gpu_name(device), labels.get(GPU_LABEL)}
        if meant and node in {None, pool}:
            found.append(rule)
    pools = sorted({rule["spec"]["deviceSelector"]["pool"] for rule in found})
    if len(pools) > 1:
        raise StateError(f"{named!r} is cordoned on nodes {', '.join(pools)}: say which by --node")
    return tuple(sorted(found, key=lambda rule: str(rule["metadata"]["name"])))
