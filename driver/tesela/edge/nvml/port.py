"""The NVML port: what the driver may ask of NVML, at NVML's own grain.

One method is one NVML function (named in its docstring), in our own types; composition lives in `plugin`. GPUs are
named by UUID and instances by their ids, because NVML's handles do not compare and do not travel between processes.
Nothing may be added that NVML itself cannot answer: the simulator and the real library are held to one contract suite.

Every method raises `NvmlError` with NVML's own code. Backends must be safe to call from many threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tesela.core.model import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class PciInfo:
    """nvmlPciInfo_t: `bus_id` as NVML prints it (8-digit domain), device id = device << 16 | vendor."""

    bus_id: str
    pci_device_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """nvmlMemory_t, bytes."""

    total_bytes: int
    free_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigMode:
    """nvmlDeviceGetMigMode: `codes.MIG_DISABLED` or `codes.MIG_ENABLED`, now and after the next reset."""

    current: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricInfo:
    """nvmlGpuFabricInfo: `state` is one of codes.FABRIC_*; `cluster_uuid` in canonical text form, "" if all zero.

    `status` is NVML's code of how joining the fabric ended, and says something in the state COMPLETED alone (nvml.h).
    """

    cluster_uuid: str
    clique_id: int
    state: int
    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstanceProfileInfo:
    """nvmlGpuInstanceProfileInfo_v2_t; `profile_id` is what create and list calls take, `name` "" on old drivers."""

    profile_id: int
    name: str
    slice_count: int
    instance_count: int
    multiprocessor_count: int
    copy_engine_count: int
    decoder_count: int
    encoder_count: int
    jpeg_count: int
    ofa_count: int
    memory_size_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstanceProfileInfo:
    """nvmlComputeInstanceProfileInfo_v2_t (engine profile SHARED)."""

    profile_id: int
    name: str
    slice_count: int
    instance_count: int
    multiprocessor_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstanceInfo:
    """nvmlGpuInstanceInfo_t."""

    gi_id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstanceInfo:
    """nvmlComputeInstanceInfo_t, with the UUID of the MIG device it forms (nvmlDeviceGetUUID of its handle)."""

    ci_id: int
    gi_id: int
    profile_id: int
    mig_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """nvmlProcessInfo_t: `gi_id`/`ci_id` are None where NVML reports 0xFFFFFFFF."""

    pid: int
    gi_id: int | None
    ci_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EccMode:
    """nvmlDeviceGetEccMode: 1 on, 0 off, now and after the next reset."""

    current: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemappedRows:
    """nvmlDeviceGetRemappedRows: rows by cause; `pending` waits for a reset, `failure` asks for a new board."""

    correctable: int
    uncorrectable: int
    pending: bool
    failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlEvent:
    """nvmlEventData_t: `event_type` is one of codes.EVENT_*, `data` the Xid where it is EVENT_XID.

    `gi_id` and `ci_id` are None where NVML attributes the event to no instance: then it concerns all of the GPU.
    """

    gpu_uuid: str
    event_type: int
    data: int
    gi_id: int | None
    ci_id: int | None


class EventSet(Protocol):
    """nvmlEventSet_t with the GPUs it was opened for. One thread waits at a time; any thread may close it."""

    def wait(self, timeout_s: float) -> NvmlEvent | None:
        """nvmlEventSetWait_v2: the next event since the set was opened, or None if none comes within `timeout_s`.

        None also where the set is closed meanwhile. IN_USE while another thread waits on this set; UNINITIALIZED once
        it is closed; GPU_IS_LOST where NVML says so of any GPU of the set: look at each of them.
        """
        ...

    def close(self) -> None:
        """nvmlEventSetFree, after the wait that is under way has ended. Closing again does nothing.

        NvmlTimeout: that wait does not end; NVML is not told, and frees the set when it has.
        """


class GpmSample(Protocol):
    """nvmlGpmSample_t: what the counters of a GPU, or of a GPU instance, said at one time.

    `gpu_uuid` is the GPU that it was read of. Whoever got it gives it back (`free_gpm_sample`).
    """

    @property
    def gpu_uuid(self) -> str:
        """See above."""
        ...


class Nvml(Protocol):
    """NVML as the driver uses it."""

    def init(self) -> None:
        """nvmlInitWithFlags. LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED and LIB_RM_VERSION_MISMATCH are told apart."""

    def shutdown(self) -> None:
        """nvmlShutdown, after every open event set was closed. Callers see to it that no other call is inside NVML."""

    def get_driver_version(self) -> str:
        """nvmlSystemGetDriverVersion, as in `580.95.05`."""
        ...

    def get_cuda_driver_version(self) -> int:
        """nvmlSystemGetCudaDriverVersion_v2, as in 13000."""
        ...

    def get_device_count(self) -> int:
        """nvmlDeviceGetCount_v2: GPUs that NVML sees, the lost ones included or not as the driver has it."""
        ...

    def get_uuid(self, index: int) -> str:
        """nvmlDeviceGetHandleByIndex_v2 and nvmlDeviceGetUUID: `GPU-…`."""
        ...

    def get_index(self, gpu_uuid: str) -> int:
        """nvmlDeviceGetHandleByUUID and nvmlDeviceGetIndex. NOT_FOUND for a GPU that is not there."""
        ...

    def get_minor_number(self, gpu_uuid: str) -> int:
        """nvmlDeviceGetMinorNumber: N of /dev/nvidiaN; may move after a MIG toggle or a reboot."""
        ...

    def get_name(self, gpu_uuid: str) -> str:
        """nvmlDeviceGetName, as in `NVIDIA A100-SXM4-40GB`."""
        ...

    def get_brand(self, gpu_uuid: str) -> int:
        """nvmlDeviceGetBrand (nvmlBrandType_t)."""
        ...

    def get_architecture(self, gpu_uuid: str) -> int:
        """nvmlDeviceGetArchitecture; names in `codes.ARCHITECTURES`."""
        ...

    def get_cuda_compute_capability(self, gpu_uuid: str) -> tuple[int, int]:
        """nvmlDeviceGetCudaComputeCapability: (major, minor)."""
        ...

    def get_pci_info(self, gpu_uuid: str) -> PciInfo:
        """nvmlDeviceGetPciInfo_v3."""
        ...

    def get_memory_info(self, gpu_uuid: str) -> MemoryInfo:
        """nvmlDeviceGetMemoryInfo. NOT_SUPPORTED on unified-memory boards."""
        ...

    def get_mig_memory_info(self, gpu_uuid: str, mig_uuid: str) -> MemoryInfo:
        """nvmlDeviceGetMemoryInfo of a MIG device: that of its GPU instance. NOT_FOUND once it is gone."""
        ...

    def get_addressing_mode(self, gpu_uuid: str) -> str:
        """nvmlDeviceGetAddressingMode: `HMM`, `ATS` or `None`. NOT_SUPPORTED or FUNCTION_NOT_FOUND on many."""
        ...

    def get_virtualization_mode(self, gpu_uuid: str) -> int:
        """nvmlDeviceGetVirtualizationMode; `codes.VIRTUALIZATION_*`."""
        ...

    def get_fabric_info(self, gpu_uuid: str) -> FabricInfo:
        """nvmlDeviceGetGpuFabricInfoV. NOT_SUPPORTED without NVSwitch fabric."""
        ...

    def get_field_values(self, gpu_uuid: str, field_ids: Sequence[int]) -> tuple[int | None, ...]:
        """nvmlDeviceGetFieldValues: one value per id, None where that field's own return code is not SUCCESS."""
        ...

    def get_mig_mode(self, gpu_uuid: str) -> MigMode:
        """nvmlDeviceGetMigMode. NOT_SUPPORTED on a GPU without MIG."""
        ...

    def set_mig_mode(self, gpu_uuid: str, mode: int) -> int:
        """nvmlDeviceSetMigMode: returns the activation status; IN_USE or RESET_REQUIRED there means pending only.

        IN_USE as an error: GPU instances live, so that MIG mode cannot be left; nothing is pending then.
        """
        ...

    def get_gpu_instance_profile_info(self, gpu_uuid: str, profile_enum: int) -> GpuInstanceProfileInfo:
        """nvmlDeviceGetGpuInstanceProfileInfoV. NOT_SUPPORTED or INVALID_ARGUMENT: this GPU lacks the profile."""
        ...

    def get_gpu_instance_possible_placements(self, gpu_uuid: str, profile_id: int) -> tuple[Placement, ...]:
        """nvmlDeviceGetGpuInstancePossiblePlacements_v2: every legal placement, taken or not."""
        ...

    def get_gpu_instance_remaining_capacity(self, gpu_uuid: str, profile_id: int) -> int:
        """nvmlDeviceGetGpuInstanceRemainingCapacity. NOT_SUPPORTED while MIG mode is off."""
        ...

    def create_gpu_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> GpuInstanceInfo:
        """nvmlDeviceCreateGpuInstanceWithPlacement and nvmlGpuInstanceGetInfo.

        INSUFFICIENT_RESOURCES: placement taken, profile exhausted or engines missing. NOT_SUPPORTED: MIG mode is off.
        """
        ...

    def get_gpu_instances(self, gpu_uuid: str, profile_id: int) -> tuple[GpuInstanceInfo, ...]:
        """nvmlDeviceGetGpuInstances: the live instances of one profile."""
        ...

    def get_gpu_instance_by_id(self, gpu_uuid: str, gi_id: int) -> GpuInstanceInfo:
        """nvmlDeviceGetGpuInstanceById. NOT_FOUND for an unknown id, NOT_SUPPORTED while MIG mode is off."""
        ...

    def destroy_gpu_instance(self, gpu_uuid: str, gi_id: int) -> None:
        """nvmlGpuInstanceDestroy. IN_USE while it has compute instances or an open client."""

    def get_compute_instance_profile_info(
        self, gpu_uuid: str, gi_id: int, profile_enum: int
    ) -> ComputeInstanceProfileInfo:
        """nvmlGpuInstanceGetComputeInstanceProfileInfoV with the shared engine profile."""
        ...

    def create_compute_instance(self, gpu_uuid: str, gi_id: int, profile_id: int) -> ComputeInstanceInfo:
        """nvmlGpuInstanceCreateComputeInstance and nvmlComputeInstanceGetInfo_v2; the MIG device exists from now on."""
        ...

    def get_compute_instances(self, gpu_uuid: str, gi_id: int, profile_id: int) -> tuple[ComputeInstanceInfo, ...]:
        """nvmlGpuInstanceGetComputeInstances: the live compute instances of one profile in a GPU instance."""
        ...

    def destroy_compute_instance(self, gpu_uuid: str, gi_id: int, ci_id: int) -> None:
        """nvmlComputeInstanceDestroy. IN_USE while a process runs on it."""

    def get_compute_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        """nvmlDeviceGetComputeRunningProcesses_v3 of the parent: processes of the GPU and of its MIG devices."""
        ...

    def get_graphics_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        """nvmlDeviceGetGraphicsRunningProcesses_v3."""
        ...

    def get_ecc_mode(self, gpu_uuid: str) -> EccMode:
        """nvmlDeviceGetEccMode. NOT_SUPPORTED on a GPU without ECC."""
        ...

    def get_total_ecc_errors(self, gpu_uuid: str, *, uncorrected: bool, aggregate: bool) -> int:
        """nvmlDeviceGetTotalEccErrors: corrected or uncorrected, since the driver was loaded or of the GPU's life.

        NOT_SUPPORTED while ECC is off.
        """
        ...

    def get_remapped_rows(self, gpu_uuid: str) -> RemappedRows:
        """nvmlDeviceGetRemappedRows. NOT_SUPPORTED before Ampere, and while the GPU has GPU instances."""
        ...

    def get_supported_event_types(self, gpu_uuid: str) -> int:
        """nvmlDeviceGetSupportedEventTypes: a mask of codes.EVENT_*."""
        ...

    def get_gpm_support(self, gpu_uuid: str) -> bool:
        """nvmlGpmQueryDeviceSupport: whether the GPU keeps the counters of GPM, as Hopper and later do."""
        ...

    def get_gpm_sample(self, gpu_uuid: str) -> GpmSample:
        """nvmlGpmSampleAlloc and nvmlGpmSampleGet. NOT_SUPPORTED where `get_gpm_support` says no."""
        ...

    def get_mig_gpm_sample(self, gpu_uuid: str, gi_id: int) -> GpmSample:
        """nvmlGpmSampleAlloc and nvmlGpmMigSampleGet: of a GPU instance. NOT_FOUND for an instance that is gone."""
        ...

    def free_gpm_sample(self, sample: GpmSample) -> None:
        """nvmlGpmSampleFree."""

    def get_gpm_metrics(
        self, before: GpmSample, after: GpmSample, metric_ids: Sequence[int]
    ) -> tuple[float | None, ...]:
        """nvmlGpmMetricsGet: what was between two samples, one value per id (codes.GPM_*), in percent.

        None where that metric's own return code is not SUCCESS. Samples should lie 100 ms apart or more, be of one GPU
        or GPU instance, and come in order: INVALID_ARGUMENT.
        """
        ...

    def open_event_set(self, registrations: Sequence[tuple[str, int]]) -> EventSet:
        """nvmlEventSetCreate and nvmlDeviceRegisterEvents for each (GPU UUID, mask of codes.EVENT_*).

        Delivers what happens from now on; whole GPUs only. NOT_SUPPORTED for a mask with a type that the GPU lacks (see
        `get_supported_event_types`); then no set is left open. Two waiters of one set would take each other's events:
        have one thread that waits and hands on (nvml.h).
        """
        ...
