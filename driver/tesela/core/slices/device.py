"""One device as it stands in a ResourceSlice.

Every device carries every attribute that selectors use and every capacity key, because a CEL selector that meets a
missing key aborts the scheduling of its pod: the empty string, 0 or version 0.0.0 stand for "not here" and "unknown".
Attributes that constraints compare are left out when unknown, because `matchAttribute` takes "" and "" for a match.
"""

from __future__ import annotations

import re

from tesela.core.health.model import NodeHealth
from tesela.core.health.rules import render_attribute
from tesela.core.roster import KnownGpu, Roster
from tesela.core.slices.counters import (
    plan_capacity,
    plan_consumption,
    plan_counters,
    plan_gpu_capacity,
    render_consumption,
    render_integer,
)
from tesela.core.slices.offer import GpuOffer, OfferedDevice
from tesela.core.slices.state import Json
from tesela.core.slices.versions import render_cuda_version, render_version

STANDARD = "resource.kubernetes.io"
MAX_TEXT = 64
"""Bytes of a string attribute (resource.k8s.io/v1)."""

_BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


def render_device(device: OfferedDevice, offer: GpuOffer, roster: Roster, health: NodeHealth) -> Json:
    """The device's entry in a slice's `devices`."""
    known = offer.known
    partition = device.partition
    capacity = plan_capacity(partition.profile) if partition else plan_gpu_capacity(known.gpu)
    rendered: Json = {
        "name": device.name,
        "attributes": render_attributes(device, known, roster, health),
        "capacity": {name: {"value": render_integer(value)} for name, value in capacity.items()},
    }
    if offer.counted:
        counters = plan_consumption(partition) if partition else plan_counters(offer)
        rendered["consumesCounters"] = render_consumption(known, counters)
    if device.taints:
        rendered["taints"] = [
            {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}
            for taint in device.taints
        ]
    return rendered


def render_attributes(device: OfferedDevice, known: KnownGpu, roster: Roster, health: NodeHealth) -> Json:
    """The attributes of a device, also for the metadata file that its workload reads."""
    gpu, partition = known.gpu, device.partition
    texts = {
        "type": "mig" if partition else "gpu",
        "uuid": device.mig_uuid if partition else gpu.uuid,
        "parentUUID": gpu.uuid,
        "profile": partition.profile.name if partition else "",
        "productName": gpu.product_name,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "addressingMode": gpu.addressing_mode or "",
        "health": render_attribute(health, known, device.placement),
    }
    versions = {
        "cudaComputeCapability": render_version(gpu.cuda_compute_capability),
        "driverVersion": render_version(roster.driver_version),
        "cudaDriverVersion": render_cuda_version(roster.cuda_driver_version),
    }
    numbers = {
        "index": gpu.index,
        "placementStart": partition.placement.start if partition else 0,
        "placementSize": partition.placement.size if partition else gpu.grid_size,
    }
    return {
        **{name: {"string": _clip(text)} for name, text in texts.items()},
        **{name: {"version": version} for name, version in versions.items()},
        **{name: {"int": number} for name, number in numbers.items()},
        **_render_topology(known),
    }


def _render_topology(known: KnownGpu) -> Json:
    gpu = known.gpu
    attributes: Json = {}
    if bus_id := render_bus_id(gpu.pci_bus_id):
        attributes[f"{STANDARD}/pciBusID"] = {"string": bus_id}
    if gpu.pcie_root:
        attributes[f"{STANDARD}/pcieRoot"] = {"string": _clip(gpu.pcie_root)}
    if gpu.numa_node is not None and gpu.numa_node >= 0:
        attributes[f"{STANDARD}/numaNode"] = {"int": gpu.numa_node}
    if gpu.fabric_clique:
        attributes["fabricClique"] = {"string": _clip(gpu.fabric_clique)}
    return attributes


def render_bus_id(text: str) -> str | None:
    """A PCI address with a domain of at least four digits, lower case; None where it is none."""
    match = _BUS_ID.fullmatch(text.lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match else None


def _clip(text: str) -> str:
    return text.encode()[:MAX_TEXT].decode(errors="ignore")
