"""What a simulated machine looks like at one moment: frozen, for status, the map of a demo and the host tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process, SimulatedGpu
from tesela.edge.simulator.health import GpuHealth


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstanceState:
    """A live compute instance and the UUID of its MIG device."""

    ci_id: int
    name: str
    compute_slices: int
    mig_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstanceState:
    """A live GPU instance; `profile` is its name, as in `3g.20gb`."""

    gi_id: int
    profile: str
    profile_id: int
    placement: Placement
    compute_instances: tuple[ComputeInstanceState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthState:
    """ECC mode and totals, remapped rows, and what NVML says an operator must do (`codes.RECOVERY_ACTIONS`)."""

    ecc_current: int
    ecc_pending: int
    corrected_volatile: int
    corrected_aggregate: int
    uncorrected_volatile: int
    uncorrected_aggregate: int
    remapped_correctable: int
    remapped_uncorrectable: int
    remap_pending: bool
    remap_failure: bool
    recovery_action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU; `presence` is `present`, `lost` (NVML answers GPU_IS_LOST) or `absent` (NVML does not know it)."""

    uuid: str
    index: int | None
    minor: int
    model: str
    product_name: str
    pci_bus_id: str
    pci_device_id: int
    numa_node: int | None
    pcie_root: str | None
    presence: str
    mig_current: int
    mig_pending: int
    memory_slices: int
    instances: tuple[GpuInstanceState, ...]
    processes: tuple[Process, ...]
    health: HealthState


CallPhase: TypeAlias = Literal["slow", "hung", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """A call that is under way: held up by a latency (`slow`) or until a release (`hung`), then `ending`.

    What it does to the GPU comes after the wait, whether or not somebody still waits for its answer.
    """

    function: str
    gpu: str | None
    phase: CallPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """All GPUs in PCI order, the calls that are held up, and what a reboot or a driver reload changes."""

    boot_id: str
    driver_version: str
    driver_loads: int
    calls: tuple[CallState, ...]
    gpus: tuple[GpuState, ...]


def gpu_state(gpu: SimulatedGpu, index: int | None) -> GpuState:
    """The state of `gpu`, whose lock the caller holds."""
    return GpuState(
        uuid=gpu.uuid,
        index=index,
        minor=gpu.minor,
        model=gpu.model.model,
        product_name=gpu.model.product_name,
        pci_bus_id=gpu.pci_bus_id,
        pci_device_id=gpu.model.pci_device_id,
        numa_node=gpu.numa_node,
        pcie_root=gpu.pcie_root,
        presence="absent" if gpu.absent else "lost" if gpu.lost else "present",
        mig_current=gpu.mig,
        mig_pending=gpu.pending,
        memory_slices=gpu.model.memory_slices,
        instances=tuple(
            GpuInstanceState(
                gi_id=instance.gi_id,
                profile=instance.profile.name,
                profile_id=instance.profile.profile_id,
                placement=instance.placement,
                compute_instances=tuple(
                    ComputeInstanceState(
                        ci_id=compute.ci_id,
                        name=compute.profile.name,
                        compute_slices=compute.profile.compute_slices,
                        mig_uuid=compute.mig_uuid,
                    )
                    for _, compute in sorted(instance.compute.items())
                ),
            )
            for _, instance in sorted(gpu.instances.items())
        ),
        processes=tuple(gpu.processes),
        health=_health_state(gpu.health),
    )


def _health_state(health: GpuHealth) -> HealthState:
    return HealthState(
        ecc_current=health.ecc_current,
        ecc_pending=health.ecc_pending,
        corrected_volatile=health.count(codes.ECC_CORRECTED, codes.ECC_VOLATILE),
        corrected_aggregate=health.count(codes.ECC_CORRECTED, codes.ECC_AGGREGATE),
        uncorrected_volatile=health.count(codes.ECC_UNCORRECTED, codes.ECC_VOLATILE),
        uncorrected_aggregate=health.count(codes.ECC_UNCORRECTED, codes.ECC_AGGREGATE),
        remapped_correctable=health.remapped_correctable,
        remapped_uncorrectable=health.remapped_uncorrectable,
        remap_pending=health.remap_pending,
        remap_failure=health.remap_failure,
        recovery_action=codes.RECOVERY_ACTIONS[health.recovery_action],
    )
