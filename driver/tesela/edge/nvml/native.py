"""`NativeNvml`: the NVML port over NVIDIA's library, through the module `pynvml` of nvidia-ml-py.

The binding's habits stay in here: errors that are not hashable, handles that do not compare, bytes in structs, missing
symbols, version words. Every method answers in the port's types; nothing untyped leaves this file. A GPU's handle is
kept by UUID and dropped as soon as a call on it fails in a way that could mean a stale handle.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from ctypes import byref, c_uint
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.binding import NO_SUCH_VERSION, checked, instance_id, load_library, with_version
from tesela.edge.nvml.event_set import OpenEventSets
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.native_events import NativeEvents
from tesela.edge.nvml.native_gpm import free_sample, read_metrics, read_sample
from tesela.edge.nvml.native_mig import compute_instance_info, mig_memory_info, unless_gone
from tesela.edge.nvml.port import (
    ComputeInstanceInfo,
    ComputeInstanceProfileInfo,
    EccMode,
    EventSet,
    FabricInfo,
    GpmSample,
    GpuInstanceInfo,
    GpuInstanceProfileInfo,
    MemoryInfo,
    MigMode,
    PciInfo,
    ProcessInfo,
    RemappedRows,
)
from tesela.edge.nvml.structs import field_value, gpu_instance_info, profile_name, text_of

R = TypeVar("R")

_MAX_INSTANCES: Final = 32
"""Room for the instances of one profile: NVML numbers at most 15 GPU and 8 compute instances."""
_LARGEST_WORD: Final = 0xFFFFFFFF
_LIST_TRIES: Final = 3
_STALE_HANDLE: Final = frozenset(
    {codes.UNINITIALIZED, codes.INVALID_ARGUMENT, codes.NOT_FOUND, codes.GPU_IS_LOST, codes.UNKNOWN}
)
_ADDRESSING_MODES: Final = {0: "None", 1: "HMM", 2: "ATS"}


class NativeNvml:
    """The host's NVML. The library is loaded by the first `init` of a process; without it, LIBRARY_NOT_FOUND.

    `find_library` says which file that is, or raises NvmlError; None: whatever the dynamic linker finds by its name.
    """

    def __init__(self, find_library: Callable[[], Path] | None = None) -> None:
        self._find_library = find_library
        self._handles: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._inits = 0
        self._event_sets = OpenEventSets()

    def init(self) -> None:
        if self._find_library is not None:
            load_library(self._find_library)
        checked("init", pynvml.nvmlInitWithFlags, 0)
        with self._lock:
            self._inits += 1

    def shutdown(self) -> None:
        with self._lock:
            last = self._inits <= 1
        if last:
            self._event_sets.close_all()
        checked("shutdown", pynvml.nvmlShutdown)
        with self._lock:
            self._inits -= 1
            if last:
                self._handles.clear()

    def get_driver_version(self) -> str:
        return str(checked("get_driver_version", pynvml.nvmlSystemGetDriverVersion))

    def get_cuda_driver_version(self) -> int:
        return int(checked("get_cuda_driver_version", pynvml.nvmlSystemGetCudaDriverVersion_v2))

    def get_device_count(self) -> int:
        return int(checked("get_device_count", pynvml.nvmlDeviceGetCount))

    def get_uuid(self, index: int) -> str:
        if index < 0:
            raise NvmlError(codes.INVALID_ARGUMENT, FUNCTIONS["get_uuid"], codes.TEXTS[codes.INVALID_ARGUMENT])
        handle = checked("get_uuid", pynvml.nvmlDeviceGetHandleByIndex, index)
        gpu_uuid = str(checked("get_uuid", pynvml.nvmlDeviceGetUUID, handle))
        with self._lock:
            self._handles[gpu_uuid] = handle
        return gpu_uuid

    def get_index(self, gpu_uuid: str) -> int:
        return int(self._device("get_index", gpu_uuid, pynvml.nvmlDeviceGetIndex))

    def get_minor_number(self, gpu_uuid: str) -> int:
        return int(self._device("get_minor_number", gpu_uuid, pynvml.nvmlDeviceGetMinorNumber))

    def get_name(self, gpu_uuid: str) -> str:
        return str(self._device("get_name", gpu_uuid, pynvml.nvmlDeviceGetName))

    def get_brand(self, gpu_uuid: str) -> int:
        return int(self._device("get_brand", gpu_uuid, pynvml.nvmlDeviceGetBrand))

    def get_architecture(self, gpu_uuid: str) -> int:
        return int(self._device("get_architecture", gpu_uuid, pynvml.nvmlDeviceGetArchitecture))

    def get_cuda_compute_capability(self, gpu_uuid: str) -> tuple[int, int]:
        function = "get_cuda_compute_capability"
        major, minor = self._device(function, gpu_uuid, pynvml.nvmlDeviceGetCudaComputeCapability)
        return int(major), int(minor)

    def get_pci_info(self, gpu_uuid: str) -> PciInfo:
        info = self._device("get_pci_info", gpu_uuid, pynvml.nvmlDeviceGetPciInfo)
        return PciInfo(bus_id=text_of(info.busId), pci_device_id=int(info.pciDeviceId))

    def get_memory_info(self, gpu_uuid: str) -> MemoryInfo:
        info = self._device("get_memory_info", gpu_uuid, pynvml.nvmlDeviceGetMemoryInfo)
        return MemoryInfo(total_bytes=int(info.total), free_bytes=int(info.free), used_bytes=int(info.used))

    def get_mig_memory_info(self, gpu_uuid: str, mig_uuid: str) -> MemoryInfo:
        info = self._device("get_mig_memory_info", gpu_uuid, mig_memory_info, mig_uuid)
        return MemoryInfo(total_bytes=int(info.total), free_bytes=int(info.free), used_bytes=int(info.used))

    def get_addressing_mode(self, gpu_uuid: str) -> str:
        mode = int(self._device("get_addressing_mode", gpu_uuid, pynvml.nvmlDeviceGetAddressingMode))
        return _ADDRESSING_MODES.get(mode, "None")

    def get_virtualization_mode(self, gpu_uuid: str) -> int:
        return int(self._device("get_virtualization_mode", gpu_uuid, pynvml.nvmlDeviceGetVirtualizationMode))

    def get_fabric_info(self, gpu_uuid: str) -> FabricInfo:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            self._device("get_fabric_info", gpu_uuid, pynvml.nvmlDeviceGetGpuFabricInfoV, byref(info))
        except NvmlError as error:
            if error.code not in NO_SUCH_VERSION:
                raise
            info = pynvml.c_nvmlGpuFabricInfo_t()
            self._device("get_fabric_info", gpu_uuid, pynvml.nvmlDeviceGetGpuFabricInfo, byref(info))
        if int(info.state) == codes.FABRIC_NOT_SUPPORTED:
            raise NvmlError(codes.NOT_SUPPORTED, FUNCTIONS["get_fabric_info"], codes.TEXTS[codes.NOT_SUPPORTED])
        cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
        return FabricInfo(
            cluster_uuid=str(cluster) if cluster.int else "",
            clique_id=int(info.cliqueId),
            state=int(info.state),
            status=int(info.status),
        )

    def get_field_values(self, gpu_uuid: str, field_ids: Sequence[int]) -> tuple[int | None, ...]:
        if not field_ids:
            return ()
        if not all(0 <= field_id <= _LARGEST_WORD for field_id in field_ids):
            function = FUNCTIONS["get_field_values"]
            raise NvmlError(codes.INVALID_ARGUMENT, function, codes.TEXTS[codes.INVALID_ARGUMENT])
        values = self._device("get_field_values", gpu_uuid, pynvml.nvmlDeviceGetFieldValues, list(field_ids))
        return tuple(field_value(value) for value in values)

    def get_mig_mode(self, gpu_uuid: str) -> MigMode:
        current, pending = self._device("get_mig_mode", gpu_uuid, pynvml.nvmlDeviceGetMigMode)
        return MigMode(current=int(current), pending=int(pending))

    def set_mig_mode(self, gpu_uuid: str, mode: int) -> int:
        try:
            return int(self._device("set_mig_mode", gpu_uuid, pynvml.nvmlDeviceSetMigMode, mode))
        finally:
            self._forget(gpu_uuid)  # the GPU may have been unbound and bound again: an old handle means nothing

    def get_gpu_instance_profile_info(self, gpu_uuid: str, profile_enum: int) -> GpuInstanceProfileInfo:
        function = "get_gpu_instance_profile_info"
        info = self._versioned(function, gpu_uuid, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, profile_enum)
        return GpuInstanceProfileInfo(
            profile_id=int(info.id),
            name=profile_name(info),
            slice_count=int(info.sliceCount),
            instance_count=int(info.instanceCount),
            multiprocessor_count=int(info.multiprocessorCount),
            copy_engine_count=int(info.copyEngineCount),
            decoder_count=int(info.decoderCount),
            encoder_count=int(info.encoderCount),
            jpeg_count=int(info.jpegCount),
            ofa_count=int(info.ofaCount),
            memory_size_mib=int(info.memorySizeMB),
        )

    def get_gpu_instance_possible_placements(self, gpu_uuid: str, profile_id: int) -> tuple[Placement, ...]:
        function = "get_gpu_instance_possible_placements"
        query, count = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, c_uint()
        self._device(function, gpu_uuid, query, profile_id, None, byref(count))
        placements = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
        self._device(function, gpu_uuid, query, profile_id, placements, byref(count))
        return tuple(Placement(start=int(p.start), size=int(p.size)) for p in placements[: count.value])

    def get_gpu_instance_remaining_capacity(self, gpu_uuid: str, profile_id: int) -> int:
        function = "get_gpu_instance_remaining_capacity"
        return int(self._device(function, gpu_uuid, pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, profile_id))

    def create_gpu_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> GpuInstanceInfo:
        if not (0 <= placement.start <= _LARGEST_WORD and 1 <= placement.size <= _LARGEST_WORD):
            function = FUNCTIONS["create_gpu_instance"]
            raise NvmlError(codes.INVALID_ARGUMENT, function, codes.TEXTS[codes.INVALID_ARGUMENT])
        wanted = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
        instance = self._device("create_gpu_instance", gpu_uuid, create, profile_id, byref(wanted))
        try:
            return gpu_instance_info("create_gpu_instance", instance)
        except NvmlError:
            # Nobody could name it any more: it would hold its slices until the next walk.
            checked("destroy_gpu_instance", pynvml.nvmlGpuInstanceDestroy, instance)
            raise

    def get_gpu_instances(self, gpu_uuid: str, profile_id: int) -> tuple[GpuInstanceInfo, ...]:
        instances, count = (pynvml.c_nvmlGpuInstance_t * _MAX_INSTANCES)(), c_uint(_MAX_INSTANCES)
        query = pynvml.nvmlDeviceGetGpuInstances
        function = "get_gpu_instances"
        self._device(function, gpu_uuid, query, profile_id, instances, byref(count))
        listed = instances[: count.value]
        return self._read_each(function, gpu_uuid, listed, partial(unless_gone, gpu_instance_info, function))

    def get_gpu_instance_by_id(self, gpu_uuid: str, gi_id: int) -> GpuInstanceInfo:
        function = "get_gpu_instance_by_id"
        return gpu_instance_info(function, self._gpu_instance(function, gpu_uuid, gi_id))

    def destroy_gpu_instance(self, gpu_uuid: str, gi_id: int) -> None:
        instance = self._gpu_instance("destroy_gpu_instance", gpu_uuid, gi_id)
        checked("destroy_gpu_instance", pynvml.nvmlGpuInstanceDestroy, instance)

    def get_compute_instance_profile_info(
        self, gpu_uuid: str, gi_id: int, profile_enum: int
    ) -> ComputeInstanceProfileInfo:
        function = "get_compute_instance_profile_info"
        instance = self._gpu_instance(function, gpu_uuid, gi_id)
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        query = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
        info = with_version(lambda version: checked(function, query, instance, profile_enum, shared, version))
        return ComputeInstanceProfileInfo(
            profile_id=int(info.id),
            name=profile_name(info),
            slice_count=int(info.sliceCount),
            instance_count=int(info.instanceCount),
            multiprocessor_count=int(info.multiprocessorCount),
        )

    def create_compute_instance(self, gpu_uuid: str, gi_id: int, profile_id: int) -> ComputeInstanceInfo:
        function = "create_compute_instance"
        instance = self._gpu_instance(function, gpu_uuid, gi_id)
        compute = checked(function, pynvml.nvmlGpuInstanceCreateComputeInstance, instance, profile_id)
        try:
            made = self._compute_instance_info(function, gpu_uuid, gi_id, compute)
        except NvmlError:
            checked("destroy_compute_instance", pynvml.nvmlComputeInstanceDestroy, compute)
            raise
        if made is None:
            raise NvmlError(codes.NOT_FOUND, FUNCTIONS[function], "the new instance was destroyed by somebody else")
        return made

    def get_compute_instances(self, gpu_uuid: str, gi_id: int, profile_id: int) -> tuple[ComputeInstanceInfo, ...]:
        function = "get_compute_instances"
        instance = self._gpu_instance(function, gpu_uuid, gi_id)
        found, count = (pynvml.c_nvmlComputeInstance_t * _MAX_INSTANCES)(), c_uint(_MAX_INSTANCES)
        checked(function, pynvml.nvmlGpuInstanceGetComputeInstances, instance, profile_id, found, byref(count))
        listed = found[: count.value]
        read = partial(self._compute_instance_info, function, gpu_uuid, gi_id)
        return self._read_each(function, gpu_uuid, listed, read)

    def destroy_compute_instance(self, gpu_uuid: str, gi_id: int, ci_id: int) -> None:
        function = "destroy_compute_instance"
        instance = self._gpu_instance(function, gpu_uuid, gi_id)
        compute = checked(function, pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, ci_id)
        checked(function, pynvml.nvmlComputeInstanceDestroy, compute)

    def get_compute_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        function = "get_compute_running_processes"
        return self._processes(function, gpu_uuid, pynvml.nvmlDeviceGetComputeRunningProcesses)

    def get_graphics_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        function = "get_graphics_running_processes"
        return self._processes(function, gpu_uuid, pynvml.nvmlDeviceGetGraphicsRunningProcesses)

    def get_ecc_mode(self, gpu_uuid: str) -> EccMode:
        current, pending = self._device("get_ecc_mode", gpu_uuid, pynvml.nvmlDeviceGetEccMode)
        return EccMode(current=int(current), pending=int(pending))

    def get_total_ecc_errors(self, gpu_uuid: str, *, uncorrected: bool, aggregate: bool) -> int:
        function, query = "get_total_ecc_errors", pynvml.nvmlDeviceGetTotalEccErrors
        return int(self._device(function, gpu_uuid, query, int(uncorrected), int(aggregate)))

    def get_remapped_rows(self, gpu_uuid: str) -> RemappedRows:
        rows = self._device("get_remapped_rows", gpu_uuid, pynvml.nvmlDeviceGetRemappedRows)
        correctable, uncorrectable, pending, failure = rows
        return RemappedRows(
            correctable=int(correctable), uncorrectable=int(uncorrectable), pending=bool(pending), failure=bool(failure)
        )

    def get_supported_event_types(self, gpu_uuid: str) -> int:
        return int(self._device("get_supported_event_types", gpu_uuid, pynvml.nvmlDeviceGetSupportedEventTypes))

    def get_gpm_support(self, gpu_uuid: str) -> bool:
        support = self._device("get_gpm_support", gpu_uuid, pynvml.nvmlGpmQueryDeviceSupport)
        return bool(support.isSupportedDevice)

    def get_gpm_sample(self, gpu_uuid: str) -> GpmSample:
        function = "get_gpm_sample"
        return read_sample(function, gpu_uuid, partial(self._device, function, gpu_uuid, pynvml.nvmlGpmSampleGet))

    def get_mig_gpm_sample(self, gpu_uuid: str, gi_id: int) -> GpmSample:
        function, get = "get_mig_gpm_sample", pynvml.nvmlGpmMigSampleGet
        return read_sample(function, gpu_uuid, partial(self._device, function, gpu_uuid, get, gi_id))

    def free_gpm_sample(self, sample: GpmSample) -> None:
        free_sample(sample)

    def get_gpm_metrics(
        self, before: GpmSample, after: GpmSample, metric_ids: Sequence[int]
    ) -> tuple[float | None, ...]:
        return read_metrics(before, after, metric_ids)

    def open_event_set(self, registrations: Sequence[tuple[str, int]]) -> EventSet:
        events = NativeEvents()
        try:
            for gpu_uuid, mask in registrations:
                self._device("open_event_set", gpu_uuid, events.register, gpu_uuid, mask)
        except NvmlError:
            events.free()
            raise
        return self._event_sets.open(events.wait_slice, events.free)

    # Handles

    def _device(self, function: str, gpu_uuid: str, call: Callable[..., Any], *arguments: Any) -> Any:
        handle = self._handle(function, gpu_uuid)
        try:
            return checked(function, call, handle, *arguments)
        except NvmlError as error:
            if error.code in _STALE_HANDLE:
                self._forget(gpu_uuid)
            raise

    def _handle(self, function: str, gpu_uuid: str) -> Any:
        with self._lock:
            handle = self._handles.get(gpu_uuid)
        return self._find(function, gpu_uuid) if handle is None else handle

    def _find(self, function: str, gpu_uuid: str) -> Any:
        # C ends a text at a zero byte, and NVML finds MIG devices by UUID too: neither names a GPU.
        if not gpu_uuid.isascii() or "\0" in gpu_uuid or gpu_uuid.startswith("MIG-"):
            raise NvmlError(codes.NOT_FOUND, FUNCTIONS[function], codes.TEXTS[codes.NOT_FOUND])
        try:
            handle = checked(function, pynvml.nvmlDeviceGetHandleByUUID, gpu_uuid)
        except NvmlError as error:
            # Some libraries call a UUID they do not know an invalid argument; the port has one word for both.
            if error.code != codes.INVALID_ARGUMENT:
                raise
            raise NvmlError(codes.NOT_FOUND, error.function, codes.TEXTS[codes.NOT_FOUND]) from error
        with self._lock:
            self._handles[gpu_uuid] = handle
        return handle

    def _forget(self, gpu_uuid: str) -> None:
        with self._lock:
            self._handles.pop(gpu_uuid, None)

    def _processes(self, function: str, gpu_uuid: str, query: Callable[..., Any]) -> tuple[ProcessInfo, ...]:
        for tries_left in reversed(range(_LIST_TRIES)):
            try:
                found = self._device(function, gpu_uuid, query)
                break
            except NvmlError as error:
                # More processes came between the binding's question how many there are and its question which.
                if error.code != codes.INSUFFICIENT_SIZE or not tries_left:
                    raise
        return tuple(
            ProcessInfo(
                pid=int(process.pid),
                gi_id=instance_id(process.gpuInstanceId),
                ci_id=instance_id(process.computeInstanceId),
            )
            for process in found
        )

    def _versioned(self, function: str, gpu_uuid: str, call: Callable[..., Any], argument: int) -> Any:
        return with_version(lambda version: self._device(function, gpu_uuid, call, argument, version))

    def _gpu_instance(self, function: str, gpu_uuid: str, gi_id: int) -> Any:
        return self._device(function, gpu_uuid, pynvml.nvmlDeviceGetGpuInstanceById, gi_id)

    def _read_each(
        self, function: str, gpu_uuid: str, listed: Sequence[Any], read: Callable[[Any], R | None]
    ) -> tuple[R, ...]:
        """What `read` says of each; None, one that went since it was listed, is left out unless its GPU went."""
        found = [one for one in map(read, listed) if one is not None]
        if len(found) < len(listed):
            self._device(function, gpu_uuid, pynvml.nvmlDeviceGetIndex)  # raises where it is the GPU that went
        return tuple(found)

    def _compute_instance_info(
        self, function: str, gpu_uuid: str, gi_id: int, compute: Any
    ) -> ComputeInstanceInfo | None:
        asked = (function, gi_id, compute)
        info: ComputeInstanceInfo | None = self._device(function, gpu_uuid, compute_instance_info, *asked)
        return info
