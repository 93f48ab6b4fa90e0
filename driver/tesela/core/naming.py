"""Device names: a bijection between a name in a ResourceSlice and what it names.

`gpu-<number>` is a whole GPU, `gpu-<number>-mig-<profile>-<profile id>-<start>` a partition, as NVIDIA's driver names
them, so that manifests and dashboards written for it keep working. The number is the roster's, never today's minor. The
profile text is for readers: `1g.5gb+me` and `1g.5gb-me` read alike, and only the profile id tells them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from tesela.core.model import Placement, Profile

MAX_DEVICE_NAME = 63
"""A device name is a DNS label (resource.k8s.io/v1, Device.name)."""

_NUMBER = r"(0|[1-9][0-9]*)"
_WHOLE = re.compile(rf"gpu-{_NUMBER}")
_PARTITION = re.compile(rf"gpu-{_NUMBER}-mig-([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)-{_NUMBER}-{_NUMBER}")
_FOREIGN_CHARACTER = re.compile(r"[^a-z0-9-]")
_UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeName:
    """The name of a whole GPU."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionName:
    """The name of a partition; `profile_label` is the profile's name as it stands in device names."""

    number: int
    profile_label: str
    profile_id: int
    start: int


DeviceName: TypeAlias = WholeName | PartitionName


def render_profile_label(profile_name: str) -> str:
    """A profile's name as it stands in device names: no dots, lower case, `-` for what a DNS label lacks, trimmed."""
    label = _FOREIGN_CHARACTER.sub("-", profile_name.replace(".", "").lower()).strip("-")
    return label or _UNNAMED


def render_device_name(name: DeviceName) -> str:
    """The device name, at most 63 characters: the profile label is cut where the numbers need the room."""
    match name:
        case WholeName(number=number):
            return f"gpu-{number}"
        case PartitionName(number=number, profile_label=label, profile_id=profile_id, start=start):
            head, tail = f"gpu-{number}-mig-", f"-{profile_id}-{start}"
            room = MAX_DEVICE_NAME - len(head) - len(tail)
            return f"{head}{label[:room].rstrip('-')}{tail}"


def render_partition_name(number: int, profile: Profile, placement: Placement) -> str:
    """The device name of a partition of GPU `number`."""
    label = render_profile_label(profile.name)
    return render_device_name(
        PartitionName(number=number, profile_label=label, profile_id=profile.profile_id, start=placement.start)
    )


def render_counter_set_name(number: int) -> str:
    """The counter set that the devices of GPU `number` share."""
    return f"gpu-{number}-counter-set"


def parse_device_name(text: str) -> DeviceName | None:
    """What a device name names, None where it is no name of ours. Every name but the exact rendering is refused."""
    if len(text) > MAX_DEVICE_NAME:
        return None
    if whole := _WHOLE.fullmatch(text):
        return WholeName(number=int(whole[1]))
    if partition := _PARTITION.fullmatch(text):
        return PartitionName(
            number=int(partition[1]),
            profile_label=partition[2],
            profile_id=int(partition[3]),
            start=int(partition[4]),
        )
    return None
