"""MIG devices and instances that may go at any moment, as NVIDIA's binding shows them: what `native` reads of them.

Another client may destroy an instance between any two calls. Only the instance's own information tells that it is gone;
nothing here takes another call's NOT_FOUND for that. Handles of GPUs belong to `native`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.binding import checked
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import ComputeInstanceInfo

R = TypeVar("R")


def unless_gone(read: Callable[..., R], *arguments: Any) -> R | None:
    """What `read` returns, None where it ends with NOT_FOUND. NvmlError: every other code."""
    try:
        return read(*arguments)
    except NvmlError as error:
        if error.code != codes.NOT_FOUND:
            raise
        return None


def compute_instance_info(gpu: Any, function: str, gi_id: int, compute: Any) -> ComputeInstanceInfo | None:
    """What the handle `compute` names on the GPU of handle `gpu`, None once the instance is gone.

    NvmlError: UNKNOWN for an instance that lives and has no MIG device; whatever code else NVML has.
    """
    info = unless_gone(checked, function, pynvml.nvmlComputeInstanceGetInfo, compute)
    if info is None:
        return None
    mig_uuid = _find_mig_uuid(gpu, function, gi_id, info)
    if mig_uuid is not None:
        return ComputeInstanceInfo(ci_id=int(info.id), gi_id=gi_id, profile_id=int(info.profileId), mig_uuid=mig_uuid)
    if unless_gone(checked, function, pynvml.nvmlComputeInstanceGetInfo, compute) is None:
        return None
    text = f"no MIG device for compute instance {info.id} of GPU instance {gi_id}"
    raise NvmlError(codes.UNKNOWN, FUNCTIONS[function], text)


def mig_memory_info(gpu: Any, mig_uuid: str) -> Any:
    """nvmlMemory_t of the MIG device with this UUID on the GPU of handle `gpu`, by the binding's own errors.

    NOT_FOUND: no such MIG device is on it.
    """
    if not mig_uuid.isascii() or "\0" in mig_uuid or not mig_uuid.startswith("MIG-"):
        raise pynvml.NVMLError(codes.NOT_FOUND)
    device = pynvml.nvmlDeviceGetHandleByUUID(mig_uuid)
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    if pynvml.nvmlDeviceGetUUID(parent) != pynvml.nvmlDeviceGetUUID(gpu):
        raise pynvml.NVMLError(codes.NOT_FOUND)
    return pynvml.nvmlDeviceGetMemoryInfo(device)


def _find_mig_uuid(gpu: Any, function: str, gi_id: int, info: Any) -> str | None:
    # nvml.h calls the field the parent device, drivers put the MIG device there: ask what it is, or walk.
    if info.device:
        named = unless_gone(_uuid_of_mig, function, info.device)
        if named is not None:
            return named
    for index in range(int(checked(function, pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu))):
        # Indexes have holes, and a MIG device may go while it is looked at.
        mig = unless_gone(checked, function, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index)
        if mig is not None and unless_gone(_ids_of, function, mig) == (gi_id, int(info.id)):
            return unless_gone(_uuid_of, function, mig)
    return None


def _uuid_of_mig(function: str, device: Any) -> str | None:
    is_mig = checked(function, pynvml.nvmlDeviceIsMigDeviceHandle, device).value
    return _uuid_of(function, device) if is_mig else None


def _ids_of(function: str, mig: Any) -> tuple[int, int]:
    return (
        int(checked(function, pynvml.nvmlDeviceGetGpuInstanceId, mig)),
        int(checked(function, pynvml.nvmlDeviceGetComputeInstanceId, mig)),
    )


def _uuid_of(function: str, device: Any) -> str:
    return str(checked(function, pynvml.nvmlDeviceGetUUID, device))
