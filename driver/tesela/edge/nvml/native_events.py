"""NVML's own event set under the port's: registration, one wait, and NVML's numbers in the port's types."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pynvml

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.binding import checked, instance_id
from tesela.edge.nvml.port import NvmlEvent


class NativeEvents:
    """One nvmlEventSet_t. One thread waits at a time, and none while it is freed: `event_set` sees to both."""

    def __init__(self) -> None:
        self._set = checked("nvmlEventSetCreate", pynvml.nvmlEventSetCreate)
        self._uuids: dict[int | None, str] = {}

    def register(self, handle: Any, gpu_uuid: str, mask: int) -> None:
        """nvmlDeviceRegisterEvents, raising the binding's own error: `checked` is around it."""
        pynvml.nvmlDeviceRegisterEvents(handle, mask, self._set)
        self._uuids[_address(handle)] = gpu_uuid

    def wait_slice(self, timeout_s: float) -> NvmlEvent | None:
        """The next event, or None if none comes within `timeout_s`: the binding raises where NVML times out."""
        try:
            data = checked("wait_event", pynvml.nvmlEventSetWait_v2, self._set, math.ceil(timeout_s * 1000))
        except NvmlError as error:
            if error.code != codes.TIMEOUT:
                raise
            return None
        return NvmlEvent(
            gpu_uuid=self._uuid(data.device),
            event_type=int(data.eventType),
            data=int(data.eventData),
            gi_id=instance_id(data.gpuInstanceId),
            ci_id=instance_id(data.computeInstanceId),
        )

    def free(self) -> None:
        """nvmlEventSetFree."""
        checked("nvmlEventSetFree", pynvml.nvmlEventSetFree, self._set)

    def _uuid(self, handle: Any) -> str:
        # By the handle's address first: a GPU that has just been lost cannot be asked for its UUID any more.
        known = self._uuids.get(_address(handle))
        return known if known is not None else str(checked("get_uuid", pynvml.nvmlDeviceGetUUID, handle))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
