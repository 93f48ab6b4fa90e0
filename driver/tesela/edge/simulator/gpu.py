"""One simulated GPU: its state and MIG's rules on it. No locks, clock or faults here: `machine` brings them.

A rule that NVML refuses raises `Refused` with NVML's code; each names its source in NVIDIA's header or MIG guide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import (
    ComputeInstanceInfo,
    ComputeInstanceProfileInfo,
    FabricInfo,
    GpuInstanceInfo,
    GpuInstanceProfileInfo,
    MigMode,
)
from tesela.edge.simulator.activity import ActivityMeter
from tesela.edge.simulator.energy import EnergyMeter
from tesela.edge.simulator.health import GpuHealth
from tesela.edge.simulator.models import (
    MAX_GPU_INSTANCES,
    NO_ENGINES,
    ComputeInstanceProfile,
    ComputePlacement,
    Engines,
    GpuInstanceProfile,
    GpuModel,
    compute_placements,
    gi_id_of,
)
from tesela.edge.simulator.refused import Refused

MAX_COMPUTE_INSTANCES = 8
ProcessKind: TypeAlias = Literal["compute", "graphics", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that keeps the GPU, or one of its instances, in use.

    `open`: it only has the device file open, as monitoring agents do; NVML's process lists do not show it.
    """

    pid: int
    gi_id: int | None = None
    ci_id: int | None = None
    kind: ProcessKind = "compute"
    name: str = "simulated"
    memory_bytes: int = 0
    """GPU memory that it holds."""
    real: bool = False
    """It exists on the simulator's machine, and leaves the GPU when it ends."""


@dataclass(slots=True, kw_only=True)
class ComputeInstance:
    """A live compute instance; `mig_uuid` is new at each creation, `mig_index` unique on its GPU while it lives."""

    ci_id: int
    profile: ComputeInstanceProfile
    placement: ComputePlacement
    mig_uuid: str
    mig_index: int
    compute_mode: int = codes.COMPUTE_MODE_DEFAULT


@dataclass(slots=True, kw_only=True)
class GpuInstance:
    """A live GPU instance with its compute instances by id."""

    gi_id: int
    profile: GpuInstanceProfile
    placement: Placement
    compute: dict[int, ComputeInstance] = field(default_factory=dict)
    activity: ActivityMeter = field(default_factory=ActivityMeter)

    @property
    def info(self) -> GpuInstanceInfo:
        return GpuInstanceInfo(gi_id=self.gi_id, profile_id=self.profile.profile_id, placement=self.placement)


@dataclass(slots=True, kw_only=True)
class SimulatedGpu:
    """The state of one GPU. Callers hold its lock."""

    uuid: str
    model: GpuModel
    minor: int
    pci_bus_id: str
    numa_node: int | None
    pcie_root: str | None
    illegal_start_code: int
    new_mig_uuid: Callable[[], str]
    mig: int = codes.MIG_DISABLED
    pending: int = codes.MIG_DISABLED
    vgpu: bool = False
    fabric: FabricInfo | None = None
    health: GpuHealth = field(default_factory=GpuHealth)
    fields: dict[int, int | None] = field(default_factory=dict)
    """Field values set from outside; None hides one."""
    instances: dict[int, GpuInstance] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    lost: bool = False
    absent: bool = False
    next_gi_ids: list[int] = field(default_factory=list)
    persistence_mode: int = 0
    compute_mode: int = codes.COMPUTE_MODE_DEFAULT
    power_limit_mw: int | None = None
    energy: EnergyMeter = field(default_factory=EnergyMeter)
    activity: ActivityMeter = field(default_factory=ActivityMeter)

    # MIG mode

    def mig_mode(self) -> MigMode:
        return MigMode(current=self.mig, pending=self.pending)

    def set_mig_mode(self, mode: int, forced_status: int | None = None) -> int:
        """Returns the activation status; the call succeeds even where only the pending mode changes.

        Ampere waits for a reset; Hopper and later change at once if no client uses the GPU (MIG guide, enabling MIG).
        While GPU instances live the call itself fails with IN_USE and nothing becomes pending. The header is silent
        about that, so this is inferred: clients that take a failed activation for an error, and disable MIG mode while
        instances live, work on real GPUs, and one report shows both modes Enabled after such a call.
        """
        if self.vgpu:
            raise Refused(codes.NOT_SUPPORTED)
        if mode not in {codes.MIG_DISABLED, codes.MIG_ENABLED}:
            raise Refused(codes.INVALID_ARGUMENT)
        if forced_status is None and mode != self.mig and self.instances:
            raise Refused(codes.IN_USE)
        self.pending = mode
        if forced_status is not None:
            return forced_status
        if mode == self.mig:
            return codes.SUCCESS
        if self.processes:
            return codes.IN_USE
        if not self.model.resetless_mig:
            return codes.RESET_REQUIRED
        self.mig = mode
        return codes.SUCCESS

    def forget_instances(self) -> None:
        """Instances never survive a reset, a reboot, a driver reload or a mode change (MIG guide)."""
        self.instances.clear()
        self.processes.clear()

    def reset(self) -> None:
        """A GPU reset: the pending mode becomes the current one."""
        self.forget_instances()
        self.mig = self.pending
        self.lost = self.absent = False
        self.health.reset()

    def restart(self) -> None:
        """A reboot or driver reload: Ampere keeps its mode in the InfoROM, later GPUs come up with MIG off."""
        if self.model.resetless_mig:
            self.pending = codes.MIG_DISABLED
        self.persistence_mode, self.compute_mode = 0, codes.COMPUTE_MODE_DEFAULT
        self.power_limit_mw, self.energy, self.activity = None, EnergyMeter(), ActivityMeter()
        self.reset()

    def field_value(self, field_id: int) -> int | None:
        """One field of nvmlDeviceGetFieldValues; None where that field is not supported."""
        if field_id in self.fields:
            return self.fields[field_id]
        return self.health.field_value(field_id, with_instances=bool(self.instances))

    # GPU instances

    def gpu_instance_profile(self, profile_enum: int) -> GpuInstanceProfileInfo:
        if not 0 <= profile_enum < codes.GPU_INSTANCE_PROFILE_COUNT:
            raise Refused(codes.INVALID_ARGUMENT)
        profile = self.model.profile_of_enum(profile_enum)
        if profile is None:
            raise Refused(codes.NOT_SUPPORTED)
        return GpuInstanceProfileInfo(
            profile_id=profile.profile_id,
            name=profile.name,
            slice_count=profile.compute_slices,
            instance_count=profile.max_instances,
            multiprocessor_count=profile.multiprocessors,
            copy_engine_count=profile.engines.copy,
            decoder_count=profile.engines.decoder,
            encoder_count=profile.engines.encoder,
            jpeg_count=profile.engines.jpeg,
            ofa_count=profile.engines.ofa,
            memory_size_mib=profile.memory_mib,
        )

    def possible_placements(self, profile_id: int) -> tuple[Placement, ...]:
        """All legal placements, free or not, whatever the mode (nvml.h)."""
        return self._profile(profile_id).placements

    def remaining_capacity(self, profile_id: int) -> int:
        """How many more instances of the profile could be made one after the other."""
        self._require_mig()
        profile = self._profile(profile_id)
        free = [p for p in profile.placements if self.is_free(p)]
        engines, slices, count = self._engines_in_use(), self._slices_in_use(), 0
        limit = min(len(free), profile.max_instances - self._count(profile))
        while count < limit:
            engines, slices = engines + profile.engines, slices + profile.compute_slices
            if not engines.fits(self.model.engines) or slices > self.model.compute_slices:
                break
            count += 1
        return count

    def create_gpu_instance(self, profile_id: int, placement: Placement) -> GpuInstanceInfo:
        """nvmlDeviceCreateGpuInstanceWithPlacement: one code (23) for a taken slot, a full profile, missing engines."""
        self._require_mig()
        profile = self._profile(profile_id)
        if placement.size != profile.placements[0].size:
            raise Refused(codes.INVALID_ARGUMENT)
        if placement not in profile.placements:
            raise Refused(self.illegal_start_code)
        if (
            self._count(profile) >= profile.max_instances
            or not self.is_free(placement)
            or not (self._engines_in_use() + profile.engines).fits(self.model.engines)
            or self._slices_in_use() + profile.compute_slices > self.model.compute_slices
        ):
            raise Refused(codes.INSUFFICIENT_RESOURCES)
        instance = GpuInstance(gi_id=self._take_gi_id(placement), profile=profile, placement=placement)
        self.instances[instance.gi_id] = instance
        return instance.info

    def gpu_instances(self, profile_id: int) -> tuple[GpuInstanceInfo, ...]:
        self._require_mig()
        profile = self._profile(profile_id)
        return tuple(i.info for _, i in sorted(self.instances.items()) if i.profile is profile)

    def gpu_instance(self, gi_id: int) -> GpuInstance:
        """The live instance. NOT_SUPPORTED with MIG off, NOT_FOUND for an unknown id (nvmlDeviceGetGpuInstanceById)."""
        self._require_mig()
        if gi_id not in self.instances:
            raise Refused(codes.NOT_FOUND)
        return self.instances[gi_id]

    def destroy_gpu_instance(self, gi_id: int) -> None:
        """nvmlGpuInstanceDestroy: IN_USE while compute instances or processes are in it."""
        instance = self.gpu_instance(gi_id)
        if instance.compute or any(p.gi_id == gi_id for p in self.processes):
            raise Refused(codes.IN_USE)
        del self.instances[gi_id]

    # Compute instances

    def compute_instance_profile(self, gi_id: int, profile_enum: int) -> ComputeInstanceProfileInfo:
        if not 0 <= profile_enum < codes.COMPUTE_INSTANCE_PROFILE_COUNT:
            raise Refused(codes.INVALID_ARGUMENT)
        instance = self.gpu_instance(gi_id)
        profile = self._compute_profile(instance, profile_enum)
        full = profile.compute_slices == instance.profile.compute_slices
        return ComputeInstanceProfileInfo(
            profile_id=profile.profile_id,
            name=instance.profile.name if full else f"{profile.name}.{instance.profile.name}",
            slice_count=profile.compute_slices,
            instance_count=profile.max_instances,
            multiprocessor_count=profile.multiprocessors,
        )

    def create_compute_instance(
        self, gi_id: int, profile_id: int, wanted: ComputePlacement | None = None
    ) -> ComputeInstanceInfo:
        """nvmlGpuInstanceCreateComputeInstance(WithPlacement): 23 when the GPU instance has no slices left for it.

        Without a wanted placement the first free one is taken.
        """
        instance = self.gpu_instance(gi_id)
        profile = self._compute_profile(instance, profile_id)
        if wanted is not None and wanted.size != profile.compute_slices:
            raise Refused(codes.INVALID_ARGUMENT)
        if wanted is not None and wanted not in compute_placements(instance.profile, profile):
            raise Refused(self.illegal_start_code)
        free = _free_compute_placements(instance, profile)
        placement = next((p for p in free if wanted in {None, p}), None)
        if placement is None:
            raise Refused(codes.INSUFFICIENT_RESOURCES)
        ci_id = next(i for i in range(MAX_COMPUTE_INSTANCES) if i not in instance.compute)
        compute = ComputeInstance(
            ci_id=ci_id,
            profile=profile,
            placement=placement,
            mig_uuid=self.new_mig_uuid(),
            mig_index=self._free_mig_index(),
        )
        instance.compute[ci_id] = compute
        return _compute_info(instance, compute)

    def possible_compute_placements(self, gi_id: int, profile_id: int) -> tuple[ComputePlacement, ...]:
        """All legal placements in the GPU instance, free or not."""
        instance = self.gpu_instance(gi_id)
        return compute_placements(instance.profile, self._compute_profile(instance, profile_id))

    def remaining_compute_capacity(self, gi_id: int, profile_id: int) -> int:
        """How many more compute instances of the profile could be made one after the other."""
        instance = self.gpu_instance(gi_id)
        return len(_free_compute_placements(instance, self._compute_profile(instance, profile_id)))

    def compute_instances(self, gi_id: int, profile_id: int) -> tuple[ComputeInstanceInfo, ...]:
        instance = self.gpu_instance(gi_id)
        profile = self._compute_profile(instance, profile_id)
        live = [c for _, c in sorted(instance.compute.items()) if c.profile is profile]
        return tuple(_compute_info(instance, compute) for compute in live)

    def destroy_compute_instance(self, gi_id: int, ci_id: int) -> None:
        """nvmlComputeInstanceDestroy: IN_USE while a process runs on it."""
        instance = self.gpu_instance(gi_id)
        if ci_id not in instance.compute:
            raise Refused(codes.NOT_FOUND)
        if any(p.gi_id == gi_id and p.ci_id == ci_id for p in self.processes):
            raise Refused(codes.IN_USE)
        del instance.compute[ci_id]

    # Memory

    def memory_use(self) -> tuple[int, int, int]:
        """Bytes of the board: all, what the driver keeps, what processes hold."""
        total, reserved = self.model.board_memory_bytes, self.model.reserved_memory_bytes
        return total, reserved, min(sum(p.memory_bytes for p in self.processes), total - reserved)

    def instance_memory_use(self, instance: GpuInstance) -> tuple[int, int, int]:
        """The same of one GPU instance, whose profile's memory is what the driver leaves to it."""
        total = instance.profile.memory_mib << 20
        return total, 0, min(sum(p.memory_bytes for p in self.processes if p.gi_id == instance.gi_id), total)

    # Shared parts of the rules

    def _require_mig(self) -> None:
        if self.mig != codes.MIG_ENABLED:
            raise Refused(codes.NOT_SUPPORTED)

    def _profile(self, profile_id: int) -> GpuInstanceProfile:
        profile = self.model.profile_of_id(profile_id)
        if profile is None:
            raise Refused(codes.INVALID_ARGUMENT)
        return profile

    def _compute_profile(self, instance: GpuInstance, profile_id: int) -> ComputeInstanceProfile:
        if not 0 <= profile_id < codes.COMPUTE_INSTANCE_PROFILE_COUNT:
            raise Refused(codes.INVALID_ARGUMENT)
        for profile in instance.profile.compute_instances:
            if profile.profile_id == profile_id:
                return profile
        raise Refused(codes.NOT_SUPPORTED)

    def is_free(self, placement: Placement) -> bool:
        """Whether no live GPU instance covers a slice of `placement`."""
        wanted = set(placement.slices)
        return not any(wanted.intersection(i.placement.slices) for i in self.instances.values())

    def _free_mig_index(self) -> int:
        taken = {compute.mig_index for instance in self.instances.values() for compute in instance.compute.values()}
        return next(i for i in range(len(taken) + 1) if i not in taken)

    def _count(self, profile: GpuInstanceProfile) -> int:
        return sum(i.profile is profile for i in self.instances.values())

    def _engines_in_use(self) -> Engines:
        return sum((i.profile.engines for i in self.instances.values()), start=NO_ENGINES)

    def _slices_in_use(self) -> int:
        return sum(i.profile.compute_slices for i in self.instances.values())

    def _take_gi_id(self, placement: Placement) -> int:
        if self.next_gi_ids:
            return self.next_gi_ids.pop(0)
        natural = gi_id_of(self.model.memory_slices, placement)
        if natural not in self.instances:
            return natural
        # Only after an id was forced: the natural one may be taken by another placement.
        return next(i for i in range(MAX_GPU_INSTANCES) if i not in self.instances)


def _compute_info(instance: GpuInstance, compute: ComputeInstance) -> ComputeInstanceInfo:
    return ComputeInstanceInfo(
        ci_id=compute.ci_id,
        gi_id=instance.gi_id,
        profile_id=compute.profile.profile_id,
        mig_uuid=compute.mig_uuid,
    )


def _free_compute_placements(instance: GpuInstance, profile: ComputeInstanceProfile) -> tuple[ComputePlacement, ...]:
    taken = {s for compute in instance.compute.values() for s in compute.placement.slices}
    return tuple(p for p in compute_placements(instance.profile, profile) if taken.isdisjoint(p.slices))
