"""A device plugin on the node of this driver: what it offers and what it gave must not be given a second time.

The scheduler counts what device plugins give and what claims get apart, so a node with both gives one GPU twice. That
NVIDIA's device plugin works here is known by the Node, whose status lists its resources. What it gave is known by its
ids: a GPU's or a MIG device's UUID, or an index, and with time slicing or MPS each of these with a number behind `::`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tesela.core.model import LivePartition, Placement
from tesela.core.roster import KnownGpu, Roster
from tesela.core.slices.state import FOREIGN_KEY, Fence, render_label_value

RESOURCE_PREFIX: Final = "nvidia.com/"
"""Of the resources of NVIDIA's device plugin: `nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`, `nvidia.com/gpu.shared`."""
_OFFERED: Final = re.compile(r"nvidia\.com/(gpu|mig-.+?)(\.shared)?")
"""What it registers; others, such as SR-IOV plugins, offer network devices under the same prefix."""
OFFERED_VALUE: Final = "device-plugin"
"""The value of the taint on every device of a node that a device plugin works on."""
_REPLICA: Final = "::"
_OF_INDEX: Final = ":"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PluginUse:
    """A device that a device plugin gave to a container: by its `resource` and id there, to `pod` (namespace/name)."""

    resource: str
    device_id: str
    pod: str


def list_offered(allocatable: Mapping[str, str]) -> tuple[str, ...]:
    """Resources of a Node's status.allocatable that NVIDIA's device plugin offers now, as in `nvidia.com/gpu`.

    The kubelet sets to 0 what a plugin offers that went away, and to its count again when it comes back.
    """
    return tuple(name for name in list_known(allocatable) if allocatable[name] != "0")


def list_known(allocatable: Mapping[str, str]) -> tuple[str, ...]:
    """Resources that NVIDIA's device plugin offers on this Node or did once, whatever their count.

    At 0 it left, or it has not registered with the kubelet since that started: the Node does not tell which.
    """
    return tuple(sorted(filter(_OFFERED.fullmatch, allocatable)))


def plan_offered_fences(resources: Collection[str], roster: Roster) -> tuple[Fence, ...]:
    """A taint `foreign` on every device of the node while a device plugin offers `resources` on it."""
    if not resources:
        return ()
    return tuple(
        Fence(gpu_uuid=known.gpu.uuid, placement=None, key=FOREIGN_KEY, value=OFFERED_VALUE) for known in roster.gpus
    )


def plan_plugin_fences(uses: Iterable[PluginUse], roster: Roster, live: Iterable[LivePartition]) -> tuple[Fence, ...]:
    """A taint `foreign` on what was given: all of a GPU, or what overlaps one partition. Unknown ids fence nothing."""
    partitions = {one.mig_uuid: one for one in live if one.mig_uuid is not None}
    found = sorted(set(uses))
    return tuple(
        Fence(
            gpu_uuid=gpu_uuid,
            placement=placement,
            key=FOREIGN_KEY,
            value=render_label_value(f"device-plugin-{use.pod.replace('/', '-')}"),
        )
        for use in found
        if use.resource.startswith(RESOURCE_PREFIX)
        for gpu_uuid, placement in _find_places(use.device_id.partition(_REPLICA)[0], roster.gpus, partitions)
    )


def _find_places(
    device_id: str, gpus: Iterable[KnownGpu], partitions: dict[str, LivePartition]
) -> Iterator[tuple[str, Placement | None]]:
    if device_id in partitions:
        yield partitions[device_id].gpu_uuid, partitions[device_id].placement
        return
    index = device_id.partition(_OF_INDEX)[0]  # of `0:1` no more is known than its GPU
    for known in gpus:
        if device_id == known.gpu.uuid or (index == str(known.gpu.index) and known.present):
            yield known.gpu.uuid, None
