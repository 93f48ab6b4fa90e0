"""Named calls that find a GPU or a MIG device: by UUID, PCI bus id, serial number, and MIG devices by their index."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import SimulatedGpu
from tesela.edge.simulator.named_board import pci_address, serial_number
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import GpuRow, NodeRow, Row, number, words
from tesela.edge.simulator.targets import Asked, NamedAnswer, NamedRequest

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

_PCI_BUS_ID: Final = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4}|[0-9a-f]{8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})(?:\.0)?", re.IGNORECASE
)
_LEGACY_MIG_UUID: Final = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/([0-9]{1,4})/([0-9]{1,4})")


def _by_uuid(machine: Machine, request: NamedRequest) -> NamedAnswer:
    """GPU-…, MIG-… and the older MIG-GPU-…/gi/ci, which drivers still take (nvmlDeviceGetHandleByUUID)."""
    wanted = request.text
    if not wanted:
        raise Refused(codes.INVALID_ARGUMENT)
    legacy = _LEGACY_MIG_UUID.fullmatch(wanted)
    if legacy is not None:
        return machine.with_gpu(legacy[1], lambda gpu: _legacy_device(gpu, int(legacy[2]), int(legacy[3])))
    if not wanted.startswith("MIG-"):
        return machine.with_gpu(wanted, lambda gpu: _handle(gpu, None, None))
    for gpu_uuid in machine.visible_uuids():
        found = _mig_device_on(machine, gpu_uuid, wanted)
        if found is not None:
            return found
    raise Refused(codes.NOT_FOUND)


def _mig_device_on(machine: Machine, gpu_uuid: str, mig_uuid: str) -> NamedAnswer | None:
    try:
        return machine.with_gpu(gpu_uuid, lambda gpu: _find_mig_device(gpu, mig_uuid))
    except Refused as refused:
        # A GPU that fell off the bus has no MIG devices; the wanted one may be on another.
        if refused.code not in codes.GPU_GONE:
            raise
        return None


def _find_mig_device(gpu: SimulatedGpu, mig_uuid: str) -> NamedAnswer | None:
    for instance in gpu.instances.values():
        for compute in instance.compute.values():
            if compute.mig_uuid == mig_uuid:
                return _handle(gpu, instance.gi_id, compute.ci_id)
    return None


def _legacy_device(gpu: SimulatedGpu, gi_id: int, ci_id: int) -> NamedAnswer:
    instance = gpu.instances.get(gi_id)
    if instance is None or ci_id not in instance.compute:
        raise Refused(codes.NOT_FOUND)
    return _handle(gpu, gi_id, ci_id)


def _handle(gpu: SimulatedGpu, gi_id: int | None, ci_id: int | None) -> NamedAnswer:
    none = 0xFFFFFFFF
    return NamedAnswer((none if gi_id is None else gi_id, none if ci_id is None else ci_id), gpu.uuid)


def _by_pci_bus_id(machine: Machine, request: NamedRequest) -> NamedAnswer:
    match = _PCI_BUS_ID.fullmatch(request.text)
    if match is None:
        raise Refused(codes.INVALID_ARGUMENT)
    wanted = (int(match["domain"] or "0", 16), int(match["bus"], 16), int(match["device"], 16))
    for gpu in machine.visible_gpus():
        if pci_address(gpu) == wanted:
            return machine.with_gpu(gpu.uuid, lambda found: words(found.uuid))
    raise Refused(codes.NOT_FOUND)


def _by_serial(machine: Machine, request: NamedRequest) -> NamedAnswer:
    if not request.text:
        raise Refused(codes.INVALID_ARGUMENT)
    for gpu in machine.visible_gpus():
        if serial_number(gpu) == request.text:
            return machine.with_gpu(gpu.uuid, lambda found: words(found.uuid))
    raise Refused(codes.NOT_FOUND)


def _max_mig_device_count(asked: Asked) -> NamedAnswer:
    """One per compute slice; 0 where MIG is off (nvmlDeviceGetMaxMigDeviceCount)."""
    return number(asked.gpu.model.compute_slices if asked.gpu.mig == codes.MIG_ENABLED else 0)


def _mig_device_by_index(asked: Asked) -> NamedAnswer:
    """NOT_FOUND in the holes that destroyed devices leave (nvmlDeviceGetMigDeviceHandleByIndex)."""
    gpu, index = asked.gpu, asked.request.numbers[0]
    if gpu.mig != codes.MIG_ENABLED:
        raise Refused(codes.NOT_SUPPORTED)
    if not 0 <= index < gpu.model.compute_slices:
        raise Refused(codes.INVALID_ARGUMENT)
    for instance in gpu.instances.values():
        for compute in instance.compute.values():
            if compute.mig_index == index:
                return NamedAnswer((instance.gi_id, compute.ci_id))
    raise Refused(codes.NOT_FOUND)


def _index(asked: Asked) -> NamedAnswer:
    if asked.compute_instance is not None:
        return number(asked.compute_instance.mig_index)
    return number(asked.machine.visible_uuids().index(asked.gpu.uuid))


def _uuid(asked: Asked) -> NamedAnswer:
    return words(asked.gpu.uuid if asked.compute_instance is None else asked.compute_instance.mig_uuid)


ROWS: Final[tuple[Row, ...]] = (
    NodeRow(function="nvmlDeviceGetHandleByUUID", takes_text=True, rule=_by_uuid),
    NodeRow(function="nvmlDeviceGetHandleByPciBusId_v2", takes_text=True, rule=_by_pci_bus_id),
    NodeRow(function="nvmlDeviceGetHandleBySerial", takes_text=True, rule=_by_serial),
    GpuRow(function="nvmlDeviceGetMaxMigDeviceCount", target="G", rule=_max_mig_device_count),
    GpuRow(function="nvmlDeviceGetMigDeviceHandleByIndex", target="G", numbers=1, rule=_mig_device_by_index),
    GpuRow(function="nvmlDeviceGetIndex", target="D", rule=_index),
    GpuRow(function="nvmlDeviceGetUUID", target="D", rule=_uuid),
)
