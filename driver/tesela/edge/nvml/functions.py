"""Which NVML function each method of the port stands for: for messages, and for people who name a function.

The keys are exactly the port's methods and `wait_event`, which is EventSet.wait; a contract test holds that. No calls
belong here.
"""

from __future__ import annotations

from typing import Final

FUNCTIONS: Final[dict[str, str]] = {
    "init": "nvmlInitWithFlags",
    "shutdown": "nvmlShutdown",
    "get_driver_version": "nvmlSystemGetDriverVersion",
    "get_cuda_driver_version": "nvmlSystemGetCudaDriverVersion_v2",
    "get_device_count": "nvmlDeviceGetCount_v2",
    "get_uuid": "nvmlDeviceGetUUID",
    "get_index": "nvmlDeviceGetIndex",
    "get_minor_number": "nvmlDeviceGetMinorNumber",
    "get_name": "nvmlDeviceGetName",
    "get_brand": "nvmlDeviceGetBrand",
    "get_architecture": "nvmlDeviceGetArchitecture",
    "get_cuda_compute_capability": "nvmlDeviceGetCudaComputeCapability",
    "get_pci_info": "nvmlDeviceGetPciInfo_v3",
    "get_memory_info": "nvmlDeviceGetMemoryInfo",
    "get_mig_memory_info": "nvmlDeviceGetMemoryInfo",
    "get_addressing_mode": "nvmlDeviceGetAddressingMode",
    "get_virtualization_mode": "nvmlDeviceGetVirtualizationMode",
    "get_fabric_info": "nvmlDeviceGetGpuFabricInfoV",
    "get_field_values": "nvmlDeviceGetFieldValues",
    "get_mig_mode": "nvmlDeviceGetMigMode",
    "set_mig_mode": "nvmlDeviceSetMigMode",
    "get_gpu_instance_profile_info": "nvmlDeviceGetGpuInstanceProfileInfoV",
    "get_gpu_instance_possible_placements": "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "get_gpu_instance_remaining_capacity": "nvmlDeviceGetGpuInstanceRemainingCapacity",
    "create_gpu_instance": "nvmlDeviceCreateGpuInstanceWithPlacement",
    "get_gpu_instances": "nvmlDeviceGetGpuInstances",
    "get_gpu_instance_by_id": "nvmlDeviceGetGpuInstanceById",
    "destroy_gpu_instance": "nvmlGpuInstanceDestroy",
    "get_compute_instance_profile_info": "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "create_compute_instance": "nvmlGpuInstanceCreateComputeInstance",
    "get_compute_instances": "nvmlGpuInstanceGetComputeInstances",
    "destroy_compute_instance": "nvmlComputeInstanceDestroy",
    "get_compute_running_processes": "nvmlDeviceGetComputeRunningProcesses_v3",
    "get_graphics_running_processes": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "get_ecc_mode": "nvmlDeviceGetEccMode",
    "get_total_ecc_errors": "nvmlDeviceGetTotalEccErrors",
    "get_remapped_rows": "nvmlDeviceGetRemappedRows",
    "get_supported_event_types": "nvmlDeviceGetSupportedEventTypes",
    "get_gpm_support": "nvmlGpmQueryDeviceSupport",
    "get_gpm_sample": "nvmlGpmSampleGet",
    "get_mig_gpm_sample": "nvmlGpmMigSampleGet",
    "free_gpm_sample": "nvmlGpmSampleFree",
    "get_gpm_metrics": "nvmlGpmMetricsGet",
    "open_event_set": "nvmlDeviceRegisterEvents",
    "wait_event": "nvmlEventSetWait_v2",
}
