"""`RemoteNvml`: the NVML port over the socket of `tesela sim serve`, so that GPUs outlive the driver that uses them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from tesela.core.errors import DocumentError, NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.event_set import OpenEventSets
from tesela.edge.nvml.functions import FUNCTIONS
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
from tesela.edge.simulator import calls
from tesela.edge.simulator.activity import (
    ActivitySample,
    SimulatedSample,
    numbers_of,
    unless_unsupported,
    value_of_bits,
)
from tesela.edge.simulator.calls import Call
from tesela.edge.simulator.connection import Connections
from tesela.edge.simulator.event_set import RegisteredEvents
from tesela.edge.simulator.events import Event, Registration
from tesela.edge.simulator.targets import NamedAnswer, NamedRequest
from tesela.edge.simulator.wire import TEXT, Reader

R = TypeVar("R")
_NUMBERS: Final = {
    "nvmlDeviceGetHandleByUUID": 2,
    "nvmlDeviceGetMemoryInfo_v2": 4,
    "nvmlGpmSampleGet": len(ActivitySample._fields),
    "nvmlGpmMigSampleGet": len(ActivitySample._fields),
}
"""How many numbers a named call answers, where that is not one."""
CALL_TIMEOUT_S: Final = 120.0
"""Longer than any watchdog: a hanging call is the watchdog's to report, this only ends the thread that waits for it."""


class RemoteNvml:
    """NVML answered by another process; safe to call from many threads, which then wait independently."""

    def __init__(self, path: Path, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._connections = Connections(path, timeout_s=timeout_s)
        self._inits = 0
        self._lock = threading.Lock()
        self._event_sets = OpenEventSets()

    def init(self) -> None:
        self._send(calls.INIT)
        with self._lock:
            self._inits += 1

    def shutdown(self) -> None:
        if self._inits == 1:
            self._event_sets.close_all()
        self._call(calls.SHUTDOWN)
        with self._lock:
            self._inits -= 1
            last = not self._inits
        if last:
            self._connections.close()

    def close(self) -> None:
        """Closes the idle connections; the next call opens new ones."""
        self._connections.close()

    def get_driver_version(self) -> str:
        return self._call(calls.GET_DRIVER_VERSION)

    def get_cuda_driver_version(self) -> int:
        return self._call(calls.GET_CUDA_DRIVER_VERSION)

    def get_device_count(self) -> int:
        return self._call(calls.GET_DEVICE_COUNT)

    def get_uuid(self, index: int) -> str:
        return self._call(calls.GET_UUID, index)

    def get_index(self, gpu_uuid: str) -> int:
        return self._call(calls.GET_INDEX, gpu_uuid)

    def get_minor_number(self, gpu_uuid: str) -> int:
        return self._call(calls.GET_MINOR_NUMBER, gpu_uuid)

    def get_name(self, gpu_uuid: str) -> str:
        return self._call(calls.GET_NAME, gpu_uuid)

    def get_brand(self, gpu_uuid: str) -> int:
        return self._call(calls.GET_BRAND, gpu_uuid)

    def get_architecture(self, gpu_uuid: str) -> int:
        return self._call(calls.GET_ARCHITECTURE, gpu_uuid)

    def get_cuda_compute_capability(self, gpu_uuid: str) -> tuple[int, int]:
        return self._call(calls.GET_CUDA_COMPUTE_CAPABILITY, gpu_uuid)

    def get_pci_info(self, gpu_uuid: str) -> PciInfo:
        return self._call(calls.GET_PCI_INFO, gpu_uuid)

    def get_memory_info(self, gpu_uuid: str) -> MemoryInfo:
        return self._call(calls.GET_MEMORY_INFO, gpu_uuid)

    def get_mig_memory_info(self, gpu_uuid: str, mig_uuid: str) -> MemoryInfo:
        method = "get_mig_memory_info"
        found = self._ask(method, NamedRequest("nvmlDeviceGetHandleByUUID", text=mig_uuid))
        if not mig_uuid.startswith("MIG-") or found.text != gpu_uuid:
            raise NvmlError(codes.NOT_FOUND, FUNCTIONS[method], codes.TEXTS[codes.NOT_FOUND])
        gi_id, ci_id = found.numbers
        request = NamedRequest("nvmlDeviceGetMemoryInfo_v2", gpu_uuid, gi_id, ci_id)
        total, reserved, free, used = self._ask(method, request).numbers
        return MemoryInfo(total_bytes=total, free_bytes=free, used_bytes=reserved + used)

    def get_addressing_mode(self, gpu_uuid: str) -> str:
        return self._call(calls.GET_ADDRESSING_MODE, gpu_uuid)

    def get_virtualization_mode(self, gpu_uuid: str) -> int:
        return self._call(calls.GET_VIRTUALIZATION_MODE, gpu_uuid)

    def get_fabric_info(self, gpu_uuid: str) -> FabricInfo:
        return self._call(calls.GET_FABRIC_INFO, gpu_uuid)

    def get_field_values(self, gpu_uuid: str, field_ids: Sequence[int]) -> tuple[int | None, ...]:
        return self._call(calls.GET_FIELD_VALUES, gpu_uuid, tuple(field_ids))

    def get_mig_mode(self, gpu_uuid: str) -> MigMode:
        return self._call(calls.GET_MIG_MODE, gpu_uuid)

    def set_mig_mode(self, gpu_uuid: str, mode: int) -> int:
        return self._call(calls.SET_MIG_MODE, gpu_uuid, mode)

    def get_gpu_instance_profile_info(self, gpu_uuid: str, profile_enum: int) -> GpuInstanceProfileInfo:
        return self._call(calls.GET_GPU_INSTANCE_PROFILE_INFO, gpu_uuid, profile_enum)

    def get_gpu_instance_possible_placements(self, gpu_uuid: str, profile_id: int) -> tuple[Placement, ...]:
        return self._call(calls.GET_GPU_INSTANCE_POSSIBLE_PLACEMENTS, gpu_uuid, profile_id)

    def get_gpu_instance_remaining_capacity(self, gpu_uuid: str, profile_id: int) -> int:
        return self._call(calls.GET_GPU_INSTANCE_REMAINING_CAPACITY, gpu_uuid, profile_id)

    def create_gpu_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> GpuInstanceInfo:
        return self._call(calls.CREATE_GPU_INSTANCE, gpu_uuid, profile_id, placement)

    def get_gpu_instances(self, gpu_uuid: str, profile_id: int) -> tuple[GpuInstanceInfo, ...]:
        return self._call(calls.GET_GPU_INSTANCES, gpu_uuid, profile_id)

    def get_gpu_instance_by_id(self, gpu_uuid: str, gi_id: int) -> GpuInstanceInfo:
        return self._call(calls.GET_GPU_INSTANCE_BY_ID, gpu_uuid, gi_id)

    def destroy_gpu_instance(self, gpu_uuid: str, gi_id: int) -> None:
        self._call(calls.DESTROY_GPU_INSTANCE, gpu_uuid, gi_id)

    def get_compute_instance_profile_info(
        self, gpu_uuid: str, gi_id: int, profile_enum: int
    ) -> ComputeInstanceProfileInfo:
        return self._call(calls.GET_COMPUTE_INSTANCE_PROFILE_INFO, gpu_uuid, gi_id, profile_enum)

    def create_compute_instance(self, gpu_uuid: str, gi_id: int, profile_id: int) -> ComputeInstanceInfo:
        return self._call(calls.CREATE_COMPUTE_INSTANCE, gpu_uuid, gi_id, profile_id)

    def get_compute_instances(self, gpu_uuid: str, gi_id: int, profile_id: int) -> tuple[ComputeInstanceInfo, ...]:
        return self._call(calls.GET_COMPUTE_INSTANCES, gpu_uuid, gi_id, profile_id)

    def destroy_compute_instance(self, gpu_uuid: str, gi_id: int, ci_id: int) -> None:
        self._call(calls.DESTROY_COMPUTE_INSTANCE, gpu_uuid, gi_id, ci_id)

    def get_compute_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._call(calls.GET_COMPUTE_RUNNING_PROCESSES, gpu_uuid)

    def get_graphics_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._call(calls.GET_GRAPHICS_RUNNING_PROCESSES, gpu_uuid)

    def get_ecc_mode(self, gpu_uuid: str) -> EccMode:
        return self._call(calls.GET_ECC_MODE, gpu_uuid)

    def get_total_ecc_errors(self, gpu_uuid: str, *, uncorrected: bool, aggregate: bool) -> int:
        return self._call(calls.GET_TOTAL_ECC_ERRORS, gpu_uuid, int(uncorrected), int(aggregate))

    def get_remapped_rows(self, gpu_uuid: str) -> RemappedRows:
        return self._call(calls.GET_REMAPPED_ROWS, gpu_uuid)

    def get_supported_event_types(self, gpu_uuid: str) -> int:
        return self._ask_by_name("get_supported_event_types", gpu_uuid)

    def get_gpm_support(self, gpu_uuid: str) -> bool:
        return bool(self._ask_by_name("get_gpm_support", gpu_uuid))

    def get_gpm_sample(self, gpu_uuid: str) -> GpmSample:
        return self._sample("get_gpm_sample", gpu_uuid)

    def get_mig_gpm_sample(self, gpu_uuid: str, gi_id: int) -> GpmSample:
        return self._sample("get_mig_gpm_sample", gpu_uuid, gi_id)

    def _sample(self, method: str, gpu_uuid: str, *numbers: int) -> GpmSample:
        answer = self._ask(method, NamedRequest(FUNCTIONS[method], gpu_uuid, numbers=numbers))
        return SimulatedSample(gpu_uuid, ActivitySample(*answer.numbers))

    def free_gpm_sample(self, sample: GpmSample) -> None:
        """Nothing was allocated."""

    def get_gpm_metrics(
        self, before: GpmSample, after: GpmSample, metric_ids: Sequence[int]
    ) -> tuple[float | None, ...]:
        samples = (*numbers_of(before), *numbers_of(after))
        return tuple(unless_unsupported(partial(self._metric, metric_id, samples)) for metric_id in metric_ids)

    def _metric(self, metric_id: int, samples: tuple[int, ...]) -> float:
        method = "get_gpm_metrics"
        answer = self._ask(method, NamedRequest(FUNCTIONS[method], numbers=(metric_id, *samples)))
        return value_of_bits(answer.numbers[0])

    def open_event_set(self, registrations: Sequence[tuple[str, int]]) -> EventSet:
        self._require_init("open_event_set")
        events = RegisteredEvents(self._wait_event)
        for gpu_uuid, mask in registrations:
            events.add(gpu_uuid, mask, self._ask_by_name("open_event_set", gpu_uuid, mask))
        return self._event_sets.open(events.wait_slice, lambda: None)

    def _wait_event(self, registrations: Sequence[Registration], timeout_ms: int) -> Event:
        return self._call(calls.WAIT_EVENT, tuple(registrations), timeout_ms)

    def _ask_by_name(self, method: str, gpu_uuid: str, *numbers: int) -> int:
        """The one number that a named call answers, for the functions that have no opcode of their own."""
        return self._ask(method, NamedRequest(FUNCTIONS[method], gpu_uuid, numbers=numbers)).numbers[0]

    def _ask(self, method: str, request: NamedRequest) -> NamedAnswer:
        """The answer to a named call. NvmlError: its code, or UNKNOWN where it has not as many numbers as it should."""
        self._require_init(method)
        answer = self._send(calls.NAMED_CALL, request, function=FUNCTIONS[method])
        if len(answer.numbers) != _NUMBERS.get(request.function, 1):
            text = f"the simulator's answer has {len(answer.numbers)} numbers, not {_NUMBERS.get(request.function, 1)}"
            raise NvmlError(codes.UNKNOWN, FUNCTIONS[method], text)
        return answer

    def _call(self, call: Call[R], *arguments: Any) -> R:
        self._require_init(call.method)
        return self._send(call, *arguments)

    def _require_init(self, method: str) -> None:
        if not self._inits:
            raise NvmlError(codes.UNINITIALIZED, FUNCTIONS[method], codes.TEXTS[codes.UNINITIALIZED])

    def _send(self, call: Call[R], *arguments: Any, function: str = "") -> R:
        function = function or FUNCTIONS[call.method]
        try:
            payload = call.render_arguments(arguments)
        except DocumentError as error:
            raise NvmlError(codes.INVALID_ARGUMENT, function, str(error)) from error
        response = self._connections.request(call.opcode, payload, function)
        try:
            if response.code != codes.SUCCESS:
                raise NvmlError(response.code, function, TEXT.take(Reader(response.payload)))
            return call.parse_result(response.payload)
        except DocumentError as error:
            raise NvmlError(codes.UNKNOWN, function, f"the simulator's answer cannot be read: {error}") from error
