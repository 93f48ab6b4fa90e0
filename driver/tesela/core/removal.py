"""Who would be left behind if the driver went: the claims that hold its devices, by node, and what stays in the API.

A claim that is prepared needs the driver once more, to be given back; without it its pod stays in Terminating. What the
API shows is enough to tell: `status.allocation` says whose the devices are, and `status.devices` that this driver has
prepared them. `tesela uninstall-check` shows it. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from tesela.core.model import DRIVER_NAME

Json: TypeAlias = Mapping[str, Any]

_OURS_ALONE: Final = "placementStart"
"""Every device that we publish has this attribute, and none of NVIDIA's driver, whose name is the same."""


class Stage(StrEnum):
    """How far a claim has come on a node."""

    ALLOCATED = "allocated"
    PREPARED = "prepared"
    ENDING = "ending"


class Served(StrEnum):
    """Who serves the node that a claim was allocated on, by its slices.

    SILENT: no slice is there, so its driver is down or long gone. GONE: the Node itself is no more.
    """

    TESELA = "tesela"
    OTHER = "another driver of this name"
    SILENT = "no driver that publishes"
    GONE = "no node any more"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Held:
    """A claim and what it holds on one node. `pods` may use it, as namespace/name."""

    node: str
    claim: str
    uid: str
    devices: tuple[str, ...]
    pods: tuple[str, ...]
    stage: Stage
    served: Served

    @property
    def keeps_driver(self) -> bool:
        """Whether it needs this driver again. On a node without one that publishes, none has given it back yet."""
        return self.served in {Served.TESELA, Served.SILENT}


def is_device_of_ours(device: Json) -> bool:
    """Whether this driver published the device of a ResourceSlice, rather than NVIDIA's."""
    return _OURS_ALONE in (device.get("attributes") or {})


def list_held(claims: Iterable[Json], slices: Iterable[Json], nodes: Iterable[Json]) -> tuple[Held, ...]:
    """Every claim that holds devices of a driver of our name, once per node, in order of nodes and names."""
    served = _find_served(slices)
    known = {node["metadata"]["name"] for node in nodes}
    return tuple(sorted(one for claim in claims for one in _list_of_claim(claim, served, known)))


def _list_of_claim(claim: Json, served: Mapping[str, Served], nodes: set[str]) -> Iterable[Held]:
    metadata, status = claim["metadata"], claim.get("status") or {}
    by_node: dict[str, list[str]] = {}
    for result in (status.get("allocation") or {}).get("devices", {}).get("results") or ():
        if result["driver"] == DRIVER_NAME:
            by_node.setdefault(result["pool"], []).append(result["device"])
    reserved = [one["name"] for one in status.get("reservedFor") or () if one.get("resource") == "pods"]
    for node, devices in by_node.items():
        yield Held(
            node=node,
            claim=f"{metadata['namespace']}/{metadata['name']}",
            uid=metadata["uid"],
            devices=tuple(sorted(set(devices))),
            pods=tuple(sorted(f"{metadata['namespace']}/{name}" for name in reserved)),
            stage=_find_stage(metadata, status, node),
            served=served.get(node, Served.SILENT) if node in nodes else Served.GONE,
        )


def _find_stage(metadata: Json, status: Json, node: str) -> Stage:
    if metadata.get("deletionTimestamp"):
        return Stage.ENDING
    told = status.get("devices") or ()
    prepared = any(one.get("driver") == DRIVER_NAME and one.get("pool") == node for one in told)
    return Stage.PREPARED if prepared else Stage.ALLOCATED


def _find_served(slices: Iterable[Json]) -> dict[str, Served]:
    """By pool, which is the node's name. One that shows no device at all, as of a node without GPUs, counts as ours."""
    devices: dict[str, list[Json]] = {}
    for one in slices:
        if one["spec"].get("driver") == DRIVER_NAME:
            devices.setdefault(one["spec"]["pool"]["name"], []).extend(one["spec"].get("devices") or ())
    return {
        pool: Served.TESELA if all(is_device_of_ours(one) for one in shown) else Served.OTHER
        for pool, shown in devices.items()
    }
