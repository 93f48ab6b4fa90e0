"""What a claim's status says of our devices (`status.devices`, KEP-4817): what they are today, and how they are.

Two conditions, in the words of API conditions. `Ready`: the device was made for the claim and is still there.
`Healthy`: as the kubelet is told of it, so that a pod's status and its claim's never disagree: a degraded device works,
which its reason and message say; a device about which nothing can be known is `Unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tesela.core.health.model import NodeHealth
from tesela.core.health.verdict import plan_verdict
from tesela.core.model import DRIVER_NAME
from tesela.core.record import ClaimRecord, ClaimState, RecordedDevice

Json: TypeAlias = dict[str, Any]

READY: Final = "Ready"
HEALTHY: Final = "Healthy"
LOST: Final = (
    "its partition went with a boot, a reset of the GPU or by somebody's hand, and its containers cannot reach it any "
    "more; delete the pod"
)
INTERRUPTED: Final = (
    "the GPU's driver was loaded anew, or the GPU went and came back, under this claim: what its containers had open "
    "there is gone; delete the pod"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What befell a device that a claim was given, whatever its GPU is like now. `ready`: the device is still there."""

    reason: str
    message: str
    ready: bool


_PARTITION_LOST: Final = Loss(reason="PartitionLost", message=LOST, ready=False)
_INTERRUPTED: Final = Loss(reason="Interrupted", message=INTERRUPTED, ready=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    kind: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One entry, but for the times of its conditions: equal while there is no reason to write."""

    driver: str
    pool: str
    device: str
    share_id: str | None
    conditions: tuple[_Condition, ...]
    data: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> tuple[str, str, str, str | None]:
        """What tells entries apart."""
        return (self.driver, self.pool, self.device, self.share_id)


def plan_device_statuses(record: ClaimRecord, health: NodeHealth, *, unread: str = "") -> tuple[DeviceStatus, ...]:
    """The entries of a claim's devices; none while it is prepared or given back, whose status is left as it is.

    `unread` says why nobody looks at the GPUs now, if so.
    """
    losses = find_losses(record)
    if record.state is not ClaimState.PREPARED and not losses:
        return ()
    statuses = (_plan_one(device, health, losses.get(device), unread) for device in record.devices)
    return tuple({status.key: status for status in statuses}.values())


def render_entries(statuses: Sequence[DeviceStatus], before: Sequence[Mapping[str, Any]], now: str) -> list[Json]:
    """The entries to apply. `before` is the claim's `status.devices`.

    A condition whose status stays keeps its lastTransitionTime; others get `now` (RFC 3339).
    """
    found = {_key_of(entry): entry for entry in before}
    return [_render_entry(status, found.get(status.key, {}), now) for status in statuses]


def differ(entries: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> bool:
    """Whether `entries` would change `before`, the claim's `status.devices`.

    What others added to our entries is theirs and is not looked at, nor are entries of other drivers.
    """
    found = {_key_of(entry): entry for entry in before if entry.get("driver") == DRIVER_NAME}
    return found.keys() != {_key_of(entry) for entry in entries} or any(
        _differs(entry, found[_key_of(entry)]) for entry in entries
    )


def _differs(entry: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    known = {one.get("type"): one for one in old.get("conditions") or []}
    return old.get("data") != entry["data"] or any(
        not one.items() <= known.get(one["type"], {}).items() for one in entry["conditions"]
    )


def is_allocated(statuses: Sequence[DeviceStatus], claim: Mapping[str, Any]) -> bool:
    """Whether the claim of the API still has all these devices: the server refuses entries of others."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = {_key_of(result) for result in (allocation.get("devices") or {}).get("results") or []}
    return all(status.key in results for status in statuses)


def find_losses(record: ClaimRecord) -> dict[RecordedDevice, Loss]:
    """The devices that the claim was given and lost, or had torn from under it (`release.render_lost`)."""
    granted = {(grant.gpu_uuid, grant.gi_id) for grant in record.grants}
    losses = {device: _INTERRUPTED for device in record.devices if device.interrupted}
    if record.state is not ClaimState.PREPARING:
        return losses
    return losses | {
        device: _PARTITION_LOST
        for device in record.devices
        if device.current is not None and (device.gpu_uuid, device.current.gi_id) in granted
    }


def _plan_one(device: RecordedDevice, health: NodeHealth, loss: Loss | None, unread: str) -> DeviceStatus:
    return DeviceStatus(
        driver=DRIVER_NAME,
        pool=device.pool,
        device=device.device,
        share_id=device.share_id,
        conditions=(_plan_healthy(device, health, loss, unread), _plan_ready(loss)),
        data=_list_data(device),
    )


def _plan_ready(loss: Loss | None) -> _Condition:
    if loss is not None and not loss.ready:
        return _Condition(kind=READY, status="False", reason=loss.reason, message=loss.message)
    return _Condition(kind=READY, status="True", reason="Prepared", message="")


def _plan_healthy(device: RecordedDevice, health: NodeHealth, loss: Loss | None, unread: str) -> _Condition:
    verdict = plan_verdict(health, device.gpu_uuid, device.current.placement if device.current is not None else None)
    if loss is not None:
        return _Condition(kind=HEALTHY, status="False", reason=loss.reason, message=loss.message)
    if unread and verdict.healthy is not False:
        return _Condition(kind=HEALTHY, status="Unknown", reason="Released", message=unread)
    status = {True: "True", False: "False", None: "Unknown"}[verdict.healthy]
    return _Condition(kind=HEALTHY, status=status, reason=verdict.reason, message=verdict.message)


def _list_data(device: RecordedDevice) -> tuple[tuple[str, Any], ...]:
    """Live facts: UUIDs as `nvidia-smi -L` shows them, for a partition also its profile, ids and slot."""
    current = device.current
    if current is None:
        return (("uuid", device.gpu_uuid), ("parentUUID", device.gpu_uuid), ("profile", ""))
    return (
        ("uuid", current.mig_uuid or ""),
        ("parentUUID", device.gpu_uuid),
        ("profile", current.profile),
        ("giID", current.gi_id),
        ("ciID", current.ci_id),
        ("placementStart", current.placement.start),
        ("placementSize", current.placement.size),
    )


def _render_entry(status: DeviceStatus, old: Mapping[str, Any], now: str) -> Json:
    known = {one.get("type"): one for one in old.get("conditions") or []}
    entry: Json = {"driver": status.driver, "pool": status.pool, "device": status.device}
    if status.share_id is not None:
        entry["shareID"] = status.share_id
    entry["conditions"] = [_render_condition(one, known.get(one.kind, {}), now) for one in status.conditions]
    entry["data"] = {name: value for name, value in status.data if value is not None}
    return entry


def _render_condition(condition: _Condition, old: Mapping[str, Any], now: str) -> Json:
    since = old.get("lastTransitionTime") if old.get("status") == condition.status else None
    return {
        "type": condition.kind,
        "status": condition.status,
        "lastTransitionTime": since or now,
        "reason": condition.reason,
        "message": condition.message,
    }


def _key_of(entry: Mapping[str, Any]) -> tuple[str, str, str, str | None]:
    return (entry.get("driver", ""), entry.get("pool", ""), entry.get("device", ""), entry.get("shareID"))
