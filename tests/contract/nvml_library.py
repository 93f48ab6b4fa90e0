"""A stand-in for libnvidia-ml.so under the real binding: answers the C functions from a simulated machine.

It takes the arguments that `pynvml` passes to ctypes, so that the binding's own code runs and `NativeNvml` is held to
the contract suite where no GPU is. `missing` are symbols an old library lacks; `struct_versions` False refuses the v2
structs; `mig_device_in_info` False puts the parent where drivers put the MIG device.
"""

# ruff: noqa: N802 - the methods have the C functions' own names
from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pynvml
from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.machine import Machine
from tesela.edge.simulator.nvml import SimulatedNvml

NO_INSTANCE = 0xFFFFFFFF


class SimulatedLibrary:
    def __init__(self, machine: Machine, *, missing=(), struct_versions=True, mig_device_in_info=True):
        self.nvml = SimulatedNvml(machine)
        self.machine = machine
        self._missing = frozenset(missing)
        self._struct_versions = struct_versions
        self._mig_device_in_info = mig_device_in_info
        self._handles: list[tuple] = [()]
        self._oldest = 0

    def __getattr__(self, name: str):
        function = getattr(type(self), f"c_{name}", None)
        if function is None or name in self._missing:
            raise AttributeError(name)

        def call(*arguments):
            try:
                code = function(self, *arguments)
            except NvmlError as error:
                return error.code
            return codes.SUCCESS if code is None else code

        return call

    def _handle(self, *what) -> int:
        self._handles.append(what)
        return len(self._handles) - 1

    def _of(self, handle) -> tuple:
        number = ctypes.cast(handle, ctypes.c_void_p).value
        if number < self._oldest:
            raise NvmlError(codes.INVALID_ARGUMENT, "", "")
        return self._handles[number]

    def forget_handles(self) -> None:
        """Every handle given out so far is stale, as after a GPU was unbound and bound again."""
        self._oldest = len(self._handles)

    def _put_handle(self, reference, *what) -> None:
        number = ctypes.c_void_p(self._handle(*what))
        ctypes.memmove(reference, ctypes.byref(number), ctypes.sizeof(number))

    # Session and node

    def c_nvmlInitWithFlags(self, flags):
        self.nvml.init()

    def c_nvmlShutdown(self):
        self.nvml.shutdown()

    def c_nvmlSystemGetDriverVersion(self, buffer, length):
        buffer.value = self.nvml.get_driver_version().encode()

    def c_nvmlSystemGetCudaDriverVersion_v2(self, version):
        version._obj.value = self.nvml.get_cuda_driver_version()

    def c_nvmlDeviceGetCount_v2(self, count):
        count._obj.value = self.nvml.get_device_count()

    def c_nvmlDeviceGetHandleByIndex_v2(self, index, device):
        self._put_handle(device, self.nvml.get_uuid(getattr(index, "value", index)))

    def c_nvmlDeviceGetHandleByUUID(self, gpu_uuid, device):
        self.nvml.get_index(gpu_uuid.value.decode())
        self._put_handle(device, gpu_uuid.value.decode())

    # GPU

    def c_nvmlDeviceGetUUID(self, device, buffer, length):
        what = self._of(device)
        if len(what) == 1:
            self.nvml.get_index(what[0])
        buffer.value = (what[0] if len(what) == 1 else what[3]).encode()

    def c_nvmlDeviceGetIndex(self, device, out):
        out._obj.value = self.nvml.get_index(*self._of(device))

    def c_nvmlDeviceGetMinorNumber(self, device, out):
        out._obj.value = self.nvml.get_minor_number(*self._of(device))

    def c_nvmlDeviceGetName(self, device, buffer, length):
        buffer.value = self.nvml.get_name(*self._of(device)).encode()

    def c_nvmlDeviceGetBrand(self, device, out):
        out._obj.value = self.nvml.get_brand(*self._of(device))

    def c_nvmlDeviceGetArchitecture(self, device, out):
        out._obj.value = self.nvml.get_architecture(*self._of(device))

    def c_nvmlDeviceGetCudaComputeCapability(self, device, major, minor):
        major._obj.value, minor._obj.value = self.nvml.get_cuda_compute_capability(*self._of(device))

    def c_nvmlDeviceGetPciInfo_v3(self, device, out):
        info = self.nvml.get_pci_info(*self._of(device))
        out._obj.busId, out._obj.pciDeviceId = info.bus_id.encode(), info.pci_device_id

    def c_nvmlDeviceGetMemoryInfo(self, device, out):
        info = self.nvml.get_memory_info(*self._of(device))
        out._obj.total, out._obj.free, out._obj.used = info.total_bytes, info.free_bytes, info.used_bytes

    def c_nvmlDeviceGetAddressingMode(self, device, out):
        out._obj.value = ["None", "HMM", "ATS"].index(self.nvml.get_addressing_mode(*self._of(device)))

    def c_nvmlDeviceGetVirtualizationMode(self, device, out):
        out._obj.value = self.nvml.get_virtualization_mode(*self._of(device))

    def c_nvmlDeviceGetGpuFabricInfoV(self, device, out):
        if not self._struct_versions:
            return codes.ARGUMENT_VERSION_MISMATCH
        return self.c_nvmlDeviceGetGpuFabricInfo(device, out)

    def c_nvmlDeviceGetGpuFabricInfo(self, device, out):
        info = self.nvml.get_fabric_info(*self._of(device))
        cluster = uuid.UUID(info.cluster_uuid).bytes if info.cluster_uuid else bytes(16)
        out._obj.clusterUuid[:] = cluster
        out._obj.cliqueId, out._obj.state = info.clique_id, info.state

    def c_nvmlDeviceGetFieldValues(self, device, count, values):
        wanted = [value.fieldId for value in values._obj]
        for value, answer in zip(values._obj, self.nvml.get_field_values(*self._of(device), wanted), strict=True):
            value.nvmlReturn = codes.NOT_SUPPORTED if answer is None else codes.SUCCESS
            value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, answer or 0

    def c_nvmlDeviceGetMigMode(self, device, current, pending):
        mode = self.nvml.get_mig_mode(*self._of(device))
        current._obj.value, pending._obj.value = mode.current, mode.pending

    def c_nvmlDeviceSetMigMode(self, device, mode, status):
        status._obj.value = self.nvml.set_mig_mode(*self._of(device), mode)
        self.forget_handles()

    def c_nvmlDeviceGetComputeRunningProcesses_v3(self, device, count, processes):
        return self._put_processes(self.nvml.get_compute_running_processes(*self._of(device)), count, processes)

    def c_nvmlDeviceGetGraphicsRunningProcesses_v3(self, device, count, processes):
        return self._put_processes(self.nvml.get_graphics_running_processes(*self._of(device)), count, processes)

    def _put_processes(self, found, count, processes):
        room, count._obj.value = count._obj.value, len(found)
        if room < len(found):
            return codes.INSUFFICIENT_SIZE
        for slot, process in zip(processes or (), found, strict=False):
            slot.pid = process.pid
            slot.gpuInstanceId = NO_INSTANCE if process.gi_id is None else process.gi_id
            slot.computeInstanceId = NO_INSTANCE if process.ci_id is None else process.ci_id
        return codes.SUCCESS

    # GPU instances

    def c_nvmlDeviceGetGpuInstanceProfileInfoV(self, device, profile, out):
        if not self._struct_versions:
            return codes.ARGUMENT_VERSION_MISMATCH
        self.c_nvmlDeviceGetGpuInstanceProfileInfo(device, profile, out)
        out._obj.name = f"MIG {self.nvml.get_gpu_instance_profile_info(*self._of(device), profile).name}".encode()
        return codes.SUCCESS

    def c_nvmlDeviceGetGpuInstanceProfileInfo(self, device, profile, out):
        info = self.nvml.get_gpu_instance_profile_info(*self._of(device), profile)
        target = out._obj
        target.id, target.sliceCount, target.instanceCount = info.profile_id, info.slice_count, info.instance_count
        target.multiprocessorCount, target.copyEngineCount = info.multiprocessor_count, info.copy_engine_count
        target.decoderCount, target.encoderCount = info.decoder_count, info.encoder_count
        target.jpegCount, target.ofaCount, target.memorySizeMB = info.jpeg_count, info.ofa_count, info.memory_size_mib

    def c_nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, device, profile_id, placements, count):
        found = self.nvml.get_gpu_instance_possible_placements(*self._of(device), profile_id)
        count._obj.value = len(found)
        for slot, placement in zip(placements or (), found, strict=False):
            slot.start, slot.size = placement.start, placement.size

    def c_nvmlDeviceGetGpuInstanceRemainingCapacity(self, device, profile_id, out):
        out._obj.value = self.nvml.get_gpu_instance_remaining_capacity(*self._of(device), profile_id)

    def c_nvmlDeviceCreateGpuInstanceWithPlacement(self, device, profile_id, placement, out):
        (gpu,) = self._of(device)
        wanted = Placement(start=placement._obj.start, size=placement._obj.size)
        self._put_handle(out, gpu, self.nvml.create_gpu_instance(gpu, profile_id, wanted).gi_id)

    def c_nvmlDeviceGetGpuInstances(self, device, profile_id, instances, count):
        (gpu,) = self._of(device)
        found = self.nvml.get_gpu_instances(gpu, profile_id)
        count._obj.value = len(found)
        for index, info in enumerate(found):
            number = ctypes.c_void_p(self._handle(gpu, info.gi_id))
            instances[index] = ctypes.cast(number, pynvml.c_nvmlGpuInstance_t)

    def c_nvmlDeviceGetGpuInstanceById(self, device, gi_id, out):
        (gpu,) = self._of(device)
        self._put_handle(out, gpu, self.nvml.get_gpu_instance_by_id(gpu, gi_id).gi_id)

    def c_nvmlGpuInstanceGetInfo(self, instance, out):
        info = self.nvml.get_gpu_instance_by_id(*self._of(instance))
        out._obj.id, out._obj.profileId = info.gi_id, info.profile_id
        out._obj.placement.start, out._obj.placement.size = info.placement.start, info.placement.size

    def c_nvmlGpuInstanceDestroy(self, instance):
        self.nvml.destroy_gpu_instance(*self._of(instance))

    # Compute instances

    def c_nvmlGpuInstanceGetComputeInstanceProfileInfoV(self, instance, profile, engine_profile, out):
        if not self._struct_versions:
            return codes.ARGUMENT_VERSION_MISMATCH
        self.c_nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, engine_profile, out)
        info = self.nvml.get_compute_instance_profile_info(*self._of(instance), profile)
        out._obj.name = f"MIG {info.name}".encode()
        return codes.SUCCESS

    def c_nvmlGpuInstanceGetComputeInstanceProfileInfo(self, instance, profile, engine_profile, out):
        info = self.nvml.get_compute_instance_profile_info(*self._of(instance), profile)
        target = out._obj
        target.id, target.sliceCount, target.instanceCount = info.profile_id, info.slice_count, info.instance_count
        target.multiprocessorCount = info.multiprocessor_count

    def c_nvmlGpuInstanceCreateComputeInstance(self, instance, profile_id, out):
        gpu, gi_id = self._of(instance)
        self._put_compute(out, gpu, self.nvml.create_compute_instance(gpu, gi_id, profile_id))

    def c_nvmlGpuInstanceGetComputeInstances(self, instance, profile_id, computes, count):
        gpu, gi_id = self._of(instance)
        found = self.nvml.get_compute_instances(gpu, gi_id, profile_id)
        count._obj.value = len(found)
        for index, info in enumerate(found):
            number = ctypes.c_void_p(self._handle(gpu, gi_id, info.ci_id, info.mig_uuid, info.profile_id))
            computes[index] = ctypes.cast(number, pynvml.c_nvmlComputeInstance_t)

    def c_nvmlGpuInstanceGetComputeInstanceById(self, instance, ci_id, out):
        gpu, gi_id = self._of(instance)
        for info in self._computes(gpu, gi_id):
            if info.ci_id == ci_id:
                self._put_compute(out, gpu, info)
                return codes.SUCCESS
        return codes.NOT_FOUND

    def c_nvmlComputeInstanceGetInfo_v2(self, compute, out):
        gpu, gi_id, ci_id, mig_uuid, profile_id = self._of(compute)
        out._obj.id, out._obj.profileId = ci_id, profile_id
        device = (gpu, gi_id, ci_id, mig_uuid) if self._mig_device_in_info else (gpu,)
        out._obj.device = ctypes.cast(ctypes.c_void_p(self._handle(*device)), pynvml.c_nvmlDevice_t)

    def c_nvmlComputeInstanceDestroy(self, compute):
        self.nvml.destroy_compute_instance(*self._of(compute)[:3])

    def _put_compute(self, out, gpu, info):
        self._put_handle(out, gpu, info.gi_id, info.ci_id, info.mig_uuid, info.profile_id)

    def _computes(self, gpu, gi_id):
        profile_ids = range(codes.COMPUTE_INSTANCE_PROFILE_COUNT)
        for profile_id in profile_ids:
            try:
                yield from self.nvml.get_compute_instances(gpu, gi_id, profile_id)
            except NvmlError as error:
                if error.code != codes.NOT_SUPPORTED:
                    raise

    # MIG devices

    def c_nvmlDeviceIsMigDeviceHandle(self, device, out):
        out._obj.value = int(len(self._of(device)) == 4)

    def c_nvmlDeviceGetMaxMigDeviceCount(self, device, out):
        out._obj.value = 7

    def c_nvmlDeviceGetMigDeviceHandleByIndex(self, device, index, out):
        (gpu,) = self._of(device)
        # The first index stays a hole, as a destroyed device leaves one.
        computes = [c for i in self.machine.gpu(gpu).instances for c in self._computes(gpu, i.gi_id)]
        if not 1 <= index.value <= len(computes):
            return codes.NOT_FOUND
        info = computes[index.value - 1]
        self._put_handle(out, gpu, info.gi_id, info.ci_id, info.mig_uuid)
        return codes.SUCCESS

    def c_nvmlDeviceGetGpuInstanceId(self, device, out):
        out._obj.value = self._of(device)[1]

    def c_nvmlDeviceGetComputeInstanceId(self, device, out):
        out._obj.value = self._of(device)[2]


@contextmanager
def loaded(library: SimulatedLibrary) -> Iterator[None]:
    """`library` is what the binding has loaded."""
    before = pynvml.nvmlLib
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
