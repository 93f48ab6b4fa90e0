"""What Events say: one for each change of a GPU's or a partition's health, and for each file that was set aside.

An Event regards the Node, whose `kubectl describe` shows it. What an application did to itself changes no health and is
no Event. Pure: when and how often an Event is written is `plugin/announce.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from tesela.core.geometry import overlap
from tesela.core.health.model import HealthChange, HealthState
from tesela.core.model import ClaimRef, Placement
from tesela.core.record import ClaimRecord
from tesela.core.roster import Roster
from tesela.core.text import cut_text
from tesela.core.trouble import Trouble

NOTE_BYTES: Final = 1024
"""events.k8s.io/v1 Event.note."""
_REASONS: Final = {
    HealthState.HEALTHY: "GPURecovered",
    HealthState.DEGRADED: "GPUDegraded",
    HealthState.UNHEALTHY: "GPUUnhealthy",
    HealthState.GONE: "GPUGone",
}
SET_ASIDE: Final = "RecordSetAside"
UNREADABLE: Final = "RecordUnreadable"
IN_USE: Final = "PartitionInUse"
TROUBLE: Final = {
    Trouble.DEVICE_PLUGIN: "DevicePluginOnNode",
    Trouble.OTHER_DRIVER: "OtherDriverOnNode",
    Trouble.KUBELET: "KubeletNotRegistering",
}
ADOPTED: Final = "ClaimsAdopted"
_MOST_CLAIMS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One Event to be. Those of one `key` say the same: the second one is a count in the first.

    `identity` is that of the very occurrence, in 16 hexadecimal digits: two driver processes that overlap, or one and
    its successor, see one occurrence and are to make one Event.
    `reason` and `action` are CamelCase; `note` is at most 1024 bytes; `claim` is what it is related to beside the Node.
    """

    key: tuple[str, ...]
    identity: str
    kind: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str
    claim: ClaimRef | None = None


def plan_health_announcement(
    change: HealthChange, roster: Roster, records: Iterable[ClaimRecord], render_time: Callable[[int], str]
) -> Announcement | None:
    """The Event of one change; None where the device is neither better nor found to have anything new.

    None, too, where nothing stands against a GPU any more because it was forgotten: it is not well, it is no more.
    `render_time` writes Unix seconds for people.
    """
    found = tuple(one for one in change.added if one.state is not HealthState.HEALTHY)
    if change.before is change.after and (change.after is HealthState.HEALTHY or not found):
        return None
    if change.after is HealthState.HEALTHY and roster.find(change.gpu_uuid) is None:
        return None
    causes = found or change.removed
    device = _name_device(change, roster)
    if change.after is HealthState.HEALTHY:
        told = ", ".join(dict.fromkeys(one.signal for one in change.removed))
        said = f"{device} is healthy again: {told} is over" + (f", {change.cause}" if change.cause else "")
    elif found:
        since = render_time(min(one.since_s for one in found))
        said = f"{device} is {change.after} since {since}: " + "; ".join(one.message for one in found)
    else:
        told = ", ".join(dict.fromkeys(one.signal for one in change.removed))
        said = f"{device} is {change.after}, no longer {change.before}: {told} is over"
    claims = _render_claims(_list_touched(change, records))
    place = "" if change.placement is None else f"{change.placement.start}+{change.placement.size}"
    what = (_REASONS[change.after], change.gpu_uuid, place)
    return Announcement(
        key=(*what, claims, *sorted({one.signal for one in causes})),
        identity=_identify(*what, *sorted(f"{one.signal} {one.since_s}" for one in causes)),
        kind="Normal" if change.after is HealthState.HEALTHY else "Warning",
        reason=_REASONS[change.after],
        action="WatchHealth",
        note=_join(said, claims),
    )


def plan_set_aside_announcement(sentence: str, claim: ClaimRef | None) -> Announcement:
    """The Event of a damaged file of ours that was kept aside and replaced, as `sentence` says."""
    return Announcement(
        key=(SET_ASIDE, claim.uid if claim is not None else "", sentence),
        identity=_identify(SET_ASIDE, sentence),
        kind="Warning",
        reason=SET_ASIDE,
        action="RepairFile",
        note=cut_text(sentence, NOTE_BYTES),
        claim=claim,
    )


def plan_unreadable_announcement(sentence: str) -> Announcement:
    """The Event of a damaged record that nothing on the node is left to rebuild from."""
    return Announcement(
        key=(UNREADABLE, sentence),
        identity=_identify(UNREADABLE, sentence),
        kind="Warning",
        reason=UNREADABLE,
        action="RepairFile",
        note=cut_text(sentence, NOTE_BYTES),
    )


def plan_in_use_announcement(sentence: str, claim: ClaimRef) -> Announcement:
    """The Event of a partition that cannot be given back while a process holds it, which `sentence` names.

    The kubelet has none for an unprepare that fails (1.37: only its log tells), while the pod stays Terminating.
    """
    return Announcement(
        key=(IN_USE, claim.uid, sentence),
        identity=_identify(IN_USE, claim.uid, sentence),
        kind="Warning",
        reason=IN_USE,
        action="Unprepare",
        note=cut_text(sentence, NOTE_BYTES),
        claim=claim,
    )


def plan_adopted_announcement(sentence: str, *, complete: bool) -> Announcement:
    """The Event of a node that was taken over from NVIDIA's driver; a warning where some claim was left, or all."""
    return Announcement(
        key=(ADOPTED, sentence),
        identity=_identify(ADOPTED, sentence),
        kind="Normal" if complete else "Warning",
        reason=ADOPTED,
        action="Adopt",
        note=cut_text(sentence, NOTE_BYTES),
    )


def plan_trouble_announcement(trouble: Trouble, sentence: str, *, over: bool) -> Announcement:
    """The Event of what is in this driver's way on its node, and of its end."""
    said = f"over: {sentence}" if over else sentence
    return Announcement(
        key=(TROUBLE[trouble], said),
        identity=_identify(TROUBLE[trouble], said),
        kind="Normal" if over else "Warning",
        reason=TROUBLE[trouble],
        action="LookAround",
        note=cut_text(said, NOTE_BYTES),
    )


def _identify(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def _name_device(change: HealthChange, roster: Roster) -> str:
    known = roster.find(change.gpu_uuid)
    gpu = f"{known.name} ({change.gpu_uuid}, {known.gpu.product_name})" if known is not None else change.gpu_uuid
    if change.placement is None:
        return gpu
    slices = change.placement.slices
    where = f"slices {slices.start} to {slices.stop - 1}" if len(slices) > 1 else f"slice {slices.start}"
    return f"the partition on memory {where} of {gpu}"


def _list_touched(change: HealthChange, records: Iterable[ClaimRecord]) -> tuple[str, ...]:
    return tuple(
        f"{record.claim.namespace}/{record.claim.name}"
        for record in records
        if any(
            _touches(change.placement, device.current.placement if device.current is not None else None)
            for device in record.devices_on(change.gpu_uuid)
        )
    )


def _touches(faulty: Placement | None, held: Placement | None) -> bool:
    return faulty is None or held is None or overlap(faulty, held)


def _render_claims(names: tuple[str, ...]) -> str:
    if not names:
        return "; no claim holds it"
    more = f" and {len(names) - _MOST_CLAIMS} more" if len(names) > _MOST_CLAIMS else ""
    return f"; held by {', '.join(names[:_MOST_CLAIMS])}{more}"


def _join(said: str, claims: str) -> str:
    """Both, of which the first is cut where they do not fit."""
    claims = cut_text(claims, NOTE_BYTES // 2)
    return cut_text(said, NOTE_BYTES - len(claims.encode())) + claims
