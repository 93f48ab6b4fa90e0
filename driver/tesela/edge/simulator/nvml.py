"""`SimulatedNvml`: the NVML port answered by a `Machine` in this process. One method, one NVML function, no rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.event_set import OpenEventSets
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
from tesela.edge.simulator.activity import (
    SimulatedSample,
    is_sampled,
    numbers_of,
    plan_metric,
    read_sample,
    unless_unsupported,
)
from tesela.edge.simulator.call_path import nvml_error
from tesela.edge.simulator.event_set import RegisteredEvents
from tesela.edge.simulator.events import Event, Registration
from tesela.edge.simulator.gpu import GpuInstance, SimulatedGpu
from tesela.edge.simulator.machine import Machine
from tesela.edge.simulator.named import HANDLE_BY_INDEX
from tesela.edge.simulator.refused import Refused

R = TypeVar("R")
_LARGEST_WORD: Final = 0xFFFFFFFF


class SimulatedNvml:
    """NVML as one process sees it: it counts its own nvmlInit calls; the machine outlives it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._inits = 0
        self._lock = threading.Lock()
        self._event_sets = OpenEventSets()

    def init(self) -> None:
        self.machine.perform("init", None, lambda: None)
        with self._lock:
            self._inits += 1

    def shutdown(self) -> None:
        with self._lock:
            if not self._inits:
                raise nvml_error(codes.UNINITIALIZED, "shutdown")
            last = self._inits == 1
        if last:
            self._event_sets.close_all()
        with self._lock:
            self._inits -= 1
        self.machine.perform("shutdown", None, lambda: None)

    def get_driver_version(self) -> str:
        return self._node("get_driver_version", lambda: self.machine.spec.driver_version)

    def get_cuda_driver_version(self) -> int:
        return self._node("get_cuda_driver_version", lambda: self.machine.spec.cuda_driver_version)

    def get_device_count(self) -> int:
        return self._node("get_device_count", lambda: len(self.machine.visible_uuids()))

    def get_uuid(self, index: int) -> str:
        def find() -> str | None:
            visible = self.machine.visible_uuids()
            return visible[index] if 0 <= index < len(visible) else None

        def rule() -> str:
            found = find()
            if found is None:
                raise Refused(codes.INVALID_ARGUMENT)
            return self.machine.with_gpu(found, lambda gpu: gpu.uuid)

        self._require_init("get_uuid")
        return self.machine.perform("get_uuid", find(), rule, also=HANDLE_BY_INDEX)

    def get_index(self, gpu_uuid: str) -> int:
        return self._read("get_index", gpu_uuid, lambda gpu: self.machine.visible_uuids().index(gpu.uuid))

    def get_minor_number(self, gpu_uuid: str) -> int:
        return self._read("get_minor_number", gpu_uuid, lambda gpu: gpu.minor)

    def get_name(self, gpu_uuid: str) -> str:
        return self._read("get_name", gpu_uuid, lambda gpu: gpu.model.product_name)

    def get_brand(self, gpu_uuid: str) -> int:
        return self._read("get_brand", gpu_uuid, lambda gpu: gpu.model.brand)

    def get_architecture(self, gpu_uuid: str) -> int:
        return self._read("get_architecture", gpu_uuid, lambda gpu: gpu.model.architecture)

    def get_cuda_compute_capability(self, gpu_uuid: str) -> tuple[int, int]:
        return self._read("get_cuda_compute_capability", gpu_uuid, lambda gpu: gpu.model.compute_capability)

    def get_pci_info(self, gpu_uuid: str) -> PciInfo:
        def rule(gpu: SimulatedGpu) -> PciInfo:
            return PciInfo(bus_id=gpu.pci_bus_id, pci_device_id=gpu.model.pci_device_id << 16 | 0x10DE)

        return self._read("get_pci_info", gpu_uuid, rule)

    def get_memory_info(self, gpu_uuid: str) -> MemoryInfo:
        def rule(gpu: SimulatedGpu) -> MemoryInfo:
            total, reserved, used = gpu.memory_use()
            return MemoryInfo(total_bytes=total, free_bytes=total - reserved - used, used_bytes=reserved + used)

        return self._read("get_memory_info", gpu_uuid, rule)

    def get_mig_memory_info(self, gpu_uuid: str, mig_uuid: str) -> MemoryInfo:
        def rule(gpu: SimulatedGpu) -> MemoryInfo:
            total, reserved, used = gpu.instance_memory_use(_find_instance(gpu, mig_uuid))
            return MemoryInfo(total_bytes=total, free_bytes=total - reserved - used, used_bytes=reserved + used)

        # NVML has one function for both, and so have those who make it fail.
        return self._read("get_memory_info", gpu_uuid, rule)

    def get_addressing_mode(self, gpu_uuid: str) -> str:
        return self._read("get_addressing_mode", gpu_uuid, lambda gpu: gpu.model.addressing_mode)

    def get_virtualization_mode(self, gpu_uuid: str) -> int:
        return self._read("get_virtualization_mode", gpu_uuid, _virtualization)

    def get_fabric_info(self, gpu_uuid: str) -> FabricInfo:
        def rule(gpu: SimulatedGpu) -> FabricInfo:
            if gpu.fabric is None:
                raise Refused(codes.NOT_SUPPORTED)
            return gpu.fabric

        return self._read("get_fabric_info", gpu_uuid, rule)

    def get_field_values(self, gpu_uuid: str, field_ids: Sequence[int]) -> tuple[int | None, ...]:
        def rule(gpu: SimulatedGpu) -> tuple[int | None, ...]:
            if not all(0 <= field_id <= _LARGEST_WORD for field_id in field_ids):
                raise Refused(codes.INVALID_ARGUMENT)
            return tuple(map(gpu.field_value, field_ids))

        return self._read("get_field_values", gpu_uuid, rule)

    def get_mig_mode(self, gpu_uuid: str) -> MigMode:
        return self._read("get_mig_mode", gpu_uuid, SimulatedGpu.mig_mode)

    def set_mig_mode(self, gpu_uuid: str, mode: int) -> int:
        def set_mode(forced_status: int | None) -> int:
            return self.machine.with_gpu(
                gpu_uuid, lambda gpu: self.machine.set_mig_mode(gpu, mode, forced_status), changes=True
            )

        self._require_init("set_mig_mode")
        return self.machine.perform("set_mig_mode", gpu_uuid, lambda: set_mode(None), not_activated=set_mode)

    def get_gpu_instance_profile_info(self, gpu_uuid: str, profile_enum: int) -> GpuInstanceProfileInfo:
        return self._read("get_gpu_instance_profile_info", gpu_uuid, lambda gpu: gpu.gpu_instance_profile(profile_enum))

    def get_gpu_instance_possible_placements(self, gpu_uuid: str, profile_id: int) -> tuple[Placement, ...]:
        return self._read(
            "get_gpu_instance_possible_placements", gpu_uuid, lambda gpu: gpu.possible_placements(profile_id)
        )

    def get_gpu_instance_remaining_capacity(self, gpu_uuid: str, profile_id: int) -> int:
        return self._read(
            "get_gpu_instance_remaining_capacity", gpu_uuid, lambda gpu: gpu.remaining_capacity(profile_id)
        )

    def create_gpu_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> GpuInstanceInfo:
        return self._change("create_gpu_instance", gpu_uuid, lambda gpu: gpu.create_gpu_instance(profile_id, placement))

    def get_gpu_instances(self, gpu_uuid: str, profile_id: int) -> tuple[GpuInstanceInfo, ...]:
        return self._read("get_gpu_instances", gpu_uuid, lambda gpu: gpu.gpu_instances(profile_id))

    def get_gpu_instance_by_id(self, gpu_uuid: str, gi_id: int) -> GpuInstanceInfo:
        return self._read("get_gpu_instance_by_id", gpu_uuid, lambda gpu: gpu.gpu_instance(gi_id).info)

    def destroy_gpu_instance(self, gpu_uuid: str, gi_id: int) -> None:
        self._change("destroy_gpu_instance", gpu_uuid, lambda gpu: gpu.destroy_gpu_instance(gi_id))

    def get_compute_instance_profile_info(
        self, gpu_uuid: str, gi_id: int, profile_enum: int
    ) -> ComputeInstanceProfileInfo:
        return self._read(
            "get_compute_instance_profile_info",
            gpu_uuid,
            lambda gpu: gpu.compute_instance_profile(gi_id, profile_enum),
        )

    def create_compute_instance(self, gpu_uuid: str, gi_id: int, profile_id: int) -> ComputeInstanceInfo:
        return self._change(
            "create_compute_instance", gpu_uuid, lambda gpu: gpu.create_compute_instance(gi_id, profile_id)
        )

    def get_compute_instances(self, gpu_uuid: str, gi_id: int, profile_id: int) -> tuple[ComputeInstanceInfo, ...]:
        return self._read("get_compute_instances", gpu_uuid, lambda gpu: gpu.compute_instances(gi_id, profile_id))

    def destroy_compute_instance(self, gpu_uuid: str, gi_id: int, ci_id: int) -> None:
        self._change("destroy_compute_instance", gpu_uuid, lambda gpu: gpu.destroy_compute_instance(gi_id, ci_id))

    def get_compute_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._read("get_compute_running_processes", gpu_uuid, lambda gpu: _processes(gpu, "compute"))

    def get_graphics_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._read("get_graphics_running_processes", gpu_uuid, lambda gpu: _processes(gpu, "graphics"))

    def get_ecc_mode(self, gpu_uuid: str) -> EccMode:
        return self._read("get_ecc_mode", gpu_uuid, lambda gpu: gpu.health.ecc_mode())

    def get_total_ecc_errors(self, gpu_uuid: str, *, uncorrected: bool, aggregate: bool) -> int:
        return self.count_ecc_errors(gpu_uuid, int(uncorrected), int(aggregate))

    def count_ecc_errors(self, gpu_uuid: str, error_type: int, counter_type: int) -> int:
        """nvmlDeviceGetTotalEccErrors with NVML's own numbers, as clients of the socket send them."""
        return self._read(
            "get_total_ecc_errors", gpu_uuid, lambda gpu: gpu.health.total_ecc_errors(error_type, counter_type)
        )

    def get_remapped_rows(self, gpu_uuid: str) -> RemappedRows:
        return self._read(
            "get_remapped_rows", gpu_uuid, lambda gpu: gpu.health.remapped_rows(with_instances=bool(gpu.instances))
        )

    def get_supported_event_types(self, gpu_uuid: str) -> int:
        return self._read(
            "get_supported_event_types", gpu_uuid, lambda gpu: gpu.health.supported_event_types(gpu.model)
        )

    def get_gpm_support(self, gpu_uuid: str) -> bool:
        return self._read("get_gpm_support", gpu_uuid, is_sampled)

    def get_gpm_sample(self, gpu_uuid: str) -> GpmSample:
        return self._sample("get_gpm_sample", gpu_uuid, None)

    def get_mig_gpm_sample(self, gpu_uuid: str, gi_id: int) -> GpmSample:
        return self._sample("get_mig_gpm_sample", gpu_uuid, gi_id)

    def _sample(self, function: str, gpu_uuid: str, gi_id: int | None) -> GpmSample:
        numbers = self._read(function, gpu_uuid, lambda gpu: read_sample(gpu, gi_id, self.machine.clock()))
        return SimulatedSample(gpu_uuid, numbers)

    def free_gpm_sample(self, sample: GpmSample) -> None:
        """Nothing was allocated."""

    def get_gpm_metrics(
        self, before: GpmSample, after: GpmSample, metric_ids: Sequence[int]
    ) -> tuple[float | None, ...]:
        samples = numbers_of(before), numbers_of(after)
        rules = (partial(plan_metric, metric_id, *samples) for metric_id in metric_ids)
        return tuple(unless_unsupported(partial(self._node, "get_gpm_metrics", rule)) for rule in rules)

    def open_event_set(self, registrations: Sequence[tuple[str, int]]) -> EventSet:
        self._require_init("open_event_set")
        events = RegisteredEvents(self.wait_event)
        for gpu_uuid, mask in registrations:
            events.add(gpu_uuid, mask, self._register(gpu_uuid, mask))
        return self._event_sets.open(events.wait_slice, lambda: None)

    def wait_event(self, registrations: Sequence[Registration], timeout_ms: int) -> Event:
        """One wait as the socket has it: at most MAX_WAIT_S. NvmlError: TIMEOUT where nothing came."""

        def rule() -> Event:
            event = self.machine.events.wait(registrations, timeout_ms / 1000)
            if event is None:
                raise Refused(codes.TIMEOUT)
            return event

        return self._node("wait_event", rule)

    def _register(self, gpu_uuid: str, mask: int) -> int:
        return self._read("open_event_set", gpu_uuid, lambda gpu: self.machine.register_events(gpu, mask))

    def _node(self, function: str, rule: Callable[[], R]) -> R:
        self._require_init(function)
        return self.machine.perform(function, None, rule)

    def _read(self, function: str, gpu_uuid: str, rule: Callable[[SimulatedGpu], R]) -> R:
        self._require_init(function)
        return self.machine.perform(function, gpu_uuid, lambda: self.machine.with_gpu(gpu_uuid, rule))

    def _change(self, function: str, gpu_uuid: str, rule: Callable[[SimulatedGpu], R]) -> R:
        self._require_init(function)
        return self.machine.perform(function, gpu_uuid, lambda: self.machine.with_gpu(gpu_uuid, rule, changes=True))

    def _require_init(self, function: str) -> None:
        if not self._inits:
            raise nvml_error(codes.UNINITIALIZED, function)


def _find_instance(gpu: SimulatedGpu, mig_uuid: str) -> GpuInstance:
    for instance in gpu.instances.values():
        if any(compute.mig_uuid == mig_uuid for compute in instance.compute.values()):
            return instance
    raise Refused(codes.NOT_FOUND)


def _virtualization(gpu: SimulatedGpu) -> int:
    return codes.VIRTUALIZATION_VGPU_GUEST if gpu.vgpu else codes.VIRTUALIZATION_NONE


def _processes(gpu: SimulatedGpu, kind: str) -> tuple[ProcessInfo, ...]:
    mine = (p for p in gpu.processes if p.kind == kind)
    return tuple(ProcessInfo(pid=p.pid, gi_id=p.gi_id, ci_id=p.ci_id) for p in mine)
