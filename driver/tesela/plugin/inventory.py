"""One look at NVML and the host: everything a slice or a plan needs to know, as an immutable `Inventory`.

Reads only. A GPU that fails while it is read is named in the log and keeps its neighbours in service: one that NVML
calls lost counts as gone, one that fails otherwise is *silent*, and nothing changes for it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.model import Gpu, Inventory, LivePartition, Profile
from tesela.core.slices.device import render_bus_id
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import GpuInstanceProfileInfo, Nvml
from tesela.plugin.partition import Partitions
from tesela.plugin.side_by_side import run_side_by_side

log = logging.getLogger(__name__)

_OPTIONAL = (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND, codes.INVALID_ARGUMENT)
LOOK_TIMEOUT_S: Final = 60.0
"""For all calls on one GPU together: on a GPU that nobody keeps initialized the first ones take seconds."""


BRANDS: Final[dict[int, str]] = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
"""nvmlBrandType_t as the published manifests spell it."""

_SUFFIXES: Final[dict[int, str]] = {
    7: "+me",
    8: "+me",
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}
"""What a profile enum adds to the name where the driver gives none (go-nvlib has the same rule)."""


class Topology(Protocol):
    """What the host tells about a PCI device."""

    def get_pcie_root(self, bus_id: str) -> str | None:
        """`pci0000:64`, None where sysfs does not tell."""
        ...

    def get_numa_node(self, bus_id: str) -> int | None:
        """The NUMA node, None where unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one index showed. Without `gpu` it is gone, or `silent`; `uuid` is empty where even that was not told."""

    uuid: str = ""
    gpu: Gpu | None = None
    live: tuple[LivePartition, ...] = ()
    silent: bool = False


def discover(
    nvml: Nvml,
    topology: Topology,
    walker: Partitions,
    before: Inventory | None = None,
    *,
    uuids: Mapping[int, str] = MappingProxyType({}),
    timeout_s: float = LOOK_TIMEOUT_S,
) -> Inventory:
    """Every GPU that answers, in NVML index order, and every live partition; the GPUs are read side by side.

    What a GPU is (name, PCI address, profiles and the like) is taken from the look `before`, one of the same load of
    the kernel module, while the driver is the same: four of five calls of a first look ask for that. A GPU that NVML
    calls lost is left out, one that fails otherwise, or takes longer than `timeout_s`, is `silent`: by the UUID that
    its index had before (`uuids`) where it does not even tell that one.
    NvmlError or NvmlTimeout only where NVML as a whole fails: count and versions.
    """
    driver_version = nvml.get_driver_version()
    known = _keep_known(before, driver_version)
    indices = range(nvml.get_device_count())
    looks = {index: partial(_look_at, nvml, topology, walker, index, known) for index in indices}
    seen = run_side_by_side(looks, timeout_s=timeout_s, name="look")
    gpus = [one for index in indices if (one := seen.get(index)) is not None and one.gpu is not None]
    silent = {one.uuid for one in seen.values() if one.silent and one.uuid}
    answered = {one.uuid for one in seen.values() if one.uuid}
    for index in indices:
        if index in seen and not (seen[index].silent and not seen[index].uuid):
            continue
        uuid = uuids.get(index, "")
        log.warning("the GPU at index %d does not tell its UUID: %s", index, uuid or "one never seen, left out")
        if uuid and uuid not in answered:
            silent.add(uuid)
    return Inventory(
        driver_version=driver_version,
        cuda_driver_version=nvml.get_cuda_driver_version(),
        gpus=tuple(one.gpu for one in gpus if one.gpu is not None),
        partitions=tuple(partition for one in gpus for partition in one.live),
        silent=frozenset(silent),
    )


def _look_at(nvml: Nvml, topology: Topology, walker: Partitions, index: int, known: Mapping[str, Gpu]) -> _Seen:
    """One GPU. Whatever it does, the others are seen."""
    uuid = ""
    try:
        uuid = nvml.get_uuid(index)
        gpu = _read_again(nvml, index, known[uuid]) if uuid in known else _read_gpu(nvml, topology, index, uuid)
        live = walker.list_live(gpu.uuid, gpu.profiles) if gpu.mig_enabled else ()
    except (NvmlError, NvmlTimeout) as error:
        log.warning("GPU %s at index %d does not answer: %s", uuid or "of unknown UUID", index, error)
        return _Seen(uuid=uuid, silent=not (isinstance(error, NvmlError) and error.code in codes.GPU_GONE))
    except Exception:
        log.exception("GPU %s at index %d cannot be read, which is a fault of the driver", uuid, index)
        return _Seen(uuid=uuid, silent=True)
    return _Seen(uuid=uuid, gpu=gpu, live=live)


def _keep_known(before: Inventory | None, driver_version: str) -> dict[str, Gpu]:
    if before is None or before.driver_version != driver_version:
        return {}
    return {gpu.uuid: gpu for gpu in before.gpus}


def _read_again(nvml: Nvml, index: int, gpu: Gpu) -> Gpu:
    """What may change while the driver stays: a MIG switch moves minors, a fabric comes up late."""
    return replace(
        gpu,
        index=index,
        minor=nvml.get_minor_number(gpu.uuid),
        mig_enabled=None if gpu.mig_enabled is None else _read_mig_enabled(nvml, gpu.uuid),
        fabric_clique=read_fabric_clique(nvml, gpu.uuid),
    )


def _read_gpu(nvml: Nvml, topology: Topology, index: int, uuid: str) -> Gpu:
    architecture = nvml.get_architecture(uuid)
    guest = _is_vgpu_guest(nvml, uuid)
    bus_id = normalize_bus_id(nvml.get_pci_info(uuid).bus_id)
    major, minor = nvml.get_cuda_compute_capability(uuid)
    memory_bytes = _read_memory_bytes(nvml, uuid)
    mig_enabled = None if guest else _read_mig_enabled(nvml, uuid)
    name = nvml.get_name(uuid)
    if guest:
        log.info("GPU %s (%s) is a vGPU in a guest: MIG is the hypervisor's, so it is published whole", uuid, name)
    return Gpu(
        uuid=uuid,
        index=index,
        minor=nvml.get_minor_number(uuid),
        pci_bus_id=bus_id,
        product_name=name,
        brand=BRANDS.get(nvml.get_brand(uuid), "Unknown"),
        architecture=codes.ARCHITECTURES.get(architecture, "Unknown"),
        cuda_compute_capability=f"{major}.{minor}",
        memory_bytes=memory_bytes,
        mig_enabled=mig_enabled,
        resetless_mig=mig_enabled is not None and _is_resetless(nvml, uuid, architecture),
        profiles=() if mig_enabled is None else list_profiles(nvml, uuid, memory_bytes),
        addressing_mode=_read_addressing_mode(nvml, uuid),
        numa_node=topology.get_numa_node(bus_id),
        pcie_root=topology.get_pcie_root(bus_id),
        fabric_clique=read_fabric_clique(nvml, uuid),
    )


def normalize_bus_id(bus_id: str) -> str:
    """`00000000:65:00.0` as NVML prints it becomes `0000:65:00.0`, the form of resource.kubernetes.io/pciBusID.

    Empty where NVML gives no PCI address: the topology of that GPU is unknown then, and nothing else.
    """
    return render_bus_id(bus_id) or ""


def _is_vgpu_guest(nvml: Nvml, uuid: str) -> bool:
    try:
        return nvml.get_virtualization_mode(uuid) == codes.VIRTUALIZATION_VGPU_GUEST
    except NvmlError as error:
        if error.code in _OPTIONAL:
            return False
        raise


def _read_memory_bytes(nvml: Nvml, uuid: str) -> int | None:
    try:
        return nvml.get_memory_info(uuid).total_bytes
    except NvmlError as error:
        if error.code == codes.NOT_SUPPORTED:  # unified-memory boards
            return None
        raise


def _read_mig_enabled(nvml: Nvml, uuid: str) -> bool | None:
    try:
        return nvml.get_mig_mode(uuid).current == codes.MIG_ENABLED
    except NvmlError as error:
        if error.code in _OPTIONAL:
            return None
        raise


def _is_resetless(nvml: Nvml, uuid: str, architecture: int) -> bool:
    """Field 184 decides; drivers without it: Hopper or later. Guests never come here."""
    (value,) = nvml.get_field_values(uuid, (codes.FIELD_RESETLESS_MIG,))
    return architecture >= codes.ARCHITECTURE_HOPPER if value is None else value == 1


def _read_addressing_mode(nvml: Nvml, uuid: str) -> str | None:
    try:
        return nvml.get_addressing_mode(uuid)
    except NvmlError as error:
        if error.code in _OPTIONAL:
            return None
        raise


def read_fabric_clique(nvml: Nvml, uuid: str) -> str | None:
    """`<clusterUUID>.<cliqueId>` once the fabric is up, None where there is none or it is not known yet."""
    try:
        fabric = nvml.get_fabric_info(uuid)
    except NvmlError as error:
        if error.code in _OPTIONAL:
            return None
        raise
    if fabric.state != codes.FABRIC_COMPLETED or fabric.status != codes.SUCCESS or not fabric.cluster_uuid:
        return None
    return f"{fabric.cluster_uuid}.{fabric.clique_id}"


def list_profiles(nvml: Nvml, uuid: str, memory_bytes: int | None) -> tuple[Profile, ...]:
    """The GPU's MIG profiles; the query works with MIG mode off too. Every enum is probed."""
    profiles: list[Profile] = []
    for profile_enum in range(codes.GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.get_gpu_instance_profile_info(uuid, profile_enum)
            placements = nvml.get_gpu_instance_possible_placements(uuid, info.profile_id)
        except NvmlError as error:
            if error.code in _OPTIONAL:
                continue
            raise
        if placements:
            profiles.append(
                Profile(
                    profile_id=info.profile_id,
                    profile_enum=profile_enum,
                    name=name_profile(info, profile_enum, memory_bytes),
                    compute_slices=info.slice_count,
                    max_instances=info.instance_count,
                    memory_bytes=info.memory_size_mib * 2**20,
                    multiprocessors=info.multiprocessor_count,
                    copy_engines=info.copy_engine_count,
                    decoders=info.decoder_count,
                    encoders=info.encoder_count,
                    jpeg_engines=info.jpeg_count,
                    ofa_engines=info.ofa_count,
                    placements=tuple(sorted(placements)),
                )
            )
    return tuple(profiles)


def name_profile(info: GpuInstanceProfileInfo, profile_enum: int, memory_bytes: int | None) -> str:
    """The driver's name where it gives one (v2 struct, printed as `MIG 1g.5gb`), else go-nvlib's rule.

    GB = the profile's share of memory in eighths, rounded up, of the board's GiB, rounded up; halves round up. Without
    a known total (unified memory) the profile's own size in GiB.
    """
    if info.name:
        return info.name.removeprefix("MIG ").strip()
    memory = info.memory_size_mib * 2**20
    if memory_bytes:
        eighths = math.ceil(8 * memory / memory_bytes)
        gigabytes = math.floor(eighths * math.ceil(memory_bytes / 2**30) / 8 + 0.5)
    else:
        gigabytes = math.ceil(memory / 2**30)
    return f"{info.slice_count}g.{gigabytes}gb{_SUFFIXES.get(profile_enum, '')}"
