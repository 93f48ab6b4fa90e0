"""Make, unmake and look at partitions: the dangerous lines, in one place.

Composes NVML's calls in the only order that works (GPU instance, then compute instance; the reverse to destroy) and
undoes the first when the second fails. Callers hold the GPU's lock and have a record; nothing here decides whether a
partition may be destroyed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tesela.core.errors import NvmlError, NvmlTimeout, TryAgain
from tesela.core.model import Gpu, GpuInstance, LivePartition, Placement, Profile
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import ComputeInstanceInfo, ComputeInstanceProfileInfo, Nvml
from tesela.edge.nvml.watchdog import together
from tesela.plugin.deadline import Deadline

log = logging.getLogger(__name__)

_ABSENT = (codes.NOT_SUPPORTED, codes.INVALID_ARGUMENT)
"""How NVML says that a GPU or instance does not have a profile."""


class InstanceStays(TryAgain):
    """NVML said SUCCESS to the destruction of an instance that is still there."""


class Partitions:
    """NVML's GPU and compute instances as partitions.

    The compute-instance profiles of a GPU-instance profile never change while the driver is loaded, so they are asked
    for once per GPU and profile; a walk over seven live partitions then costs 14 calls instead of 140. The calls of one
    step go together through the watchdog, whose changes of threads cost more than they do.
    """

    def __init__(self, nvml: Nvml, deadline: Deadline | None = None) -> None:
        self._nvml = nvml
        self._deadline = deadline
        self._compute_profiles: dict[tuple[str, int], tuple[ComputeInstanceProfileInfo, ...]] = {}

    def within(self, deadline: Deadline | None) -> Partitions:
        """The same, but TryAgain instead of a call of NVML that would begin after `deadline`: many slow ones add up.

        None: whatever time it is.
        """
        timed = Partitions(self._nvml, deadline)
        timed._compute_profiles = self._compute_profiles
        return timed

    def _ask(self, gpu_uuid: str) -> Nvml:
        if self._deadline is not None:
            self._deadline.check(f"GPU {gpu_uuid}, which answers slowly")
        return self._nvml

    def check_read(self, gpu: Gpu) -> None:
        """TryAgain where nothing of a GPU in MIG mode was read yet: without its profiles no walk finds an instance.

        A roster that was rebuilt has such a GPU until it answers a look.
        """
        if gpu.profiles or gpu.mig_enabled is not None:
            return
        try:
            mode = self._ask(gpu.uuid).get_mig_mode(gpu.uuid)
        except NvmlError as error:
            if error.code in (*_ABSENT, codes.FUNCTION_NOT_FOUND):
                return
            raise
        if mode.current == codes.MIG_ENABLED:
            raise TryAgain(f"the profiles of GPU {gpu.uuid} were not read yet, the next look at the machine does that")

    def list_instances(self, gpu_uuid: str, profiles: Iterable[Profile]) -> tuple[GpuInstance, ...]:
        """Every GPU instance, by start; walked by profile, so that one without compute instance is seen.

        Empty while MIG mode is off.
        """
        return together(self._nvml, gpu_uuid, lambda: self._list_instances(gpu_uuid, profiles))

    def _list_instances(self, gpu_uuid: str, profiles: Iterable[Profile]) -> tuple[GpuInstance, ...]:
        found: list[GpuInstance] = []
        for profile in profiles:
            try:
                instances = self._ask(gpu_uuid).get_gpu_instances(gpu_uuid, profile.profile_id)
            except NvmlError as error:
                if error.code == codes.NOT_SUPPORTED:
                    return ()
                raise
            found.extend(
                GpuInstance(gpu_uuid=gpu_uuid, profile_id=one.profile_id, placement=one.placement, gi_id=one.gi_id)
                for one in instances
            )
        return tuple(sorted(found, key=lambda one: one.placement))

    def describe(self, instance: GpuInstance) -> LivePartition:
        """The instance with its MIG device.

        With several compute instances it has an id and no UUID: Tesela neither makes nor offers such a device, yet it
        holds its slices.
        """
        compute = self.list_compute_instances(instance)
        only = compute[0] if len(compute) == 1 else None
        return LivePartition(
            gpu_uuid=instance.gpu_uuid,
            profile_id=instance.profile_id,
            placement=instance.placement,
            gi_id=instance.gi_id,
            ci_id=compute[0].ci_id if compute else None,
            mig_uuid=only.mig_uuid if only else None,
        )

    def list_live(self, gpu_uuid: str, profiles: Iterable[Profile]) -> tuple[LivePartition, ...]:
        """Every GPU instance, described; without the GPU's lock, one that goes while we look is left out."""
        return together(self._nvml, gpu_uuid, lambda: self._list_live(gpu_uuid, profiles))

    def _list_live(self, gpu_uuid: str, profiles: Iterable[Profile]) -> tuple[LivePartition, ...]:
        found: list[LivePartition] = []
        for instance in self.list_instances(gpu_uuid, profiles):
            with _gone_is_done():  # the GPU has just answered: what is not found is the instance
                found.append(self.describe(instance))
        return tuple(found)

    def list_compute_instances(self, instance: GpuInstance) -> tuple[ComputeInstanceInfo, ...]:
        """All compute instances of a GPU instance, whatever their profile."""
        found: dict[int, ComputeInstanceInfo] = {}
        for profile in self._list_compute_profiles(instance):
            for one in self._ask(instance.gpu_uuid).get_compute_instances(
                instance.gpu_uuid, instance.gi_id, profile.profile_id
            ):
                found[one.ci_id] = one
        return tuple(found[ci_id] for ci_id in sorted(found))

    def create(self, gpu_uuid: str, profile: Profile, placement: Placement) -> LivePartition:
        """A GPU instance at `placement` and the compute instance that fills it.

        When the second step fails the first is undone at once (the leak of upstream issue 1452); the error is the
        second step's. An instance made elsewhere than asked for is undone too: no record covers it. What NVML refuses
        is an NvmlError with NVML's code.
        """
        return together(self._nvml, gpu_uuid, lambda: self._create(gpu_uuid, profile, placement))

    def _create(self, gpu_uuid: str, profile: Profile, placement: Placement) -> LivePartition:
        info = self._ask(gpu_uuid).create_gpu_instance(gpu_uuid, profile.profile_id, placement)
        instance = GpuInstance(
            gpu_uuid=gpu_uuid, profile_id=info.profile_id, placement=info.placement, gi_id=info.gi_id
        )
        if (info.profile_id, info.placement) != (profile.profile_id, placement):
            raise self._refuse_elsewhere(instance)
        try:
            compute_profile = self._find_filling_profile(instance, profile)
            compute = self._ask(gpu_uuid).create_compute_instance(gpu_uuid, instance.gi_id, compute_profile.profile_id)
        except (NvmlError, TryAgain):
            self._undo(instance)
            raise
        return LivePartition(
            gpu_uuid=gpu_uuid,
            profile_id=instance.profile_id,
            placement=instance.placement,
            gi_id=instance.gi_id,
            ci_id=compute.ci_id,
            mig_uuid=compute.mig_uuid,
        )

    def destroy(self, instance: GpuInstance) -> None:
        """Destroy the compute instances, then the GPU instance, and see that it is gone.

        IN_USE passes through; NOT_FOUND means done. InstanceStays: NVML said SUCCESS and something is left, as drivers
        have been seen to do (issue 146 of go-nvml); the same call again may do it.
        """
        together(self._nvml, instance.gpu_uuid, lambda: self._destroy(instance))

    def _destroy(self, instance: GpuInstance) -> None:
        try:
            for compute in self.list_compute_instances(instance):
                with _gone_is_done():
                    self._ask(instance.gpu_uuid).destroy_compute_instance(
                        instance.gpu_uuid, instance.gi_id, compute.ci_id
                    )
        except NvmlError as error:
            if error.code != codes.NOT_FOUND:
                raise
        try:
            with _gone_is_done():
                self._ask(instance.gpu_uuid).destroy_gpu_instance(instance.gpu_uuid, instance.gi_id)
        except NvmlError as error:
            if error.code == codes.IN_USE and (left := self.list_compute_instances(instance)):
                raise InstanceStays(_explain_stay(instance, f"compute instance {left[0].ci_id} of ")) from error
            raise
        if self._exists(instance):
            raise InstanceStays(_explain_stay(instance))

    def _exists(self, instance: GpuInstance) -> bool:
        try:
            live = self._ask(instance.gpu_uuid).get_gpu_instances(instance.gpu_uuid, instance.profile_id)
        except NvmlError as error:
            if error.code == codes.NOT_SUPPORTED:  # MIG mode was switched off, which takes them all
                return False
            raise
        return any(one.gi_id == instance.gi_id for one in live)

    def _undo(self, instance: GpuInstance) -> None:
        """Undo a half-made instance; where even that fails, the claim's *preparing* record still covers the slot."""
        try:
            self._nvml.destroy_gpu_instance(instance.gpu_uuid, instance.gi_id)  # whatever time it is
        except (NvmlError, NvmlTimeout) as error:
            log.warning(
                "GPU instance %d stays on %s until its claim is undone: %s", instance.gi_id, instance.gpu_uuid, error
            )

    def _refuse_elsewhere(self, instance: GpuInstance) -> NvmlError:
        at = instance.placement
        made = f"it made GPU instance {instance.gi_id} of profile {instance.profile_id} at {at.start} size {at.size}"
        try:
            self.within(None).destroy(instance)
            outcome = "which was destroyed again"
        except (NvmlError, TryAgain) as error:
            outcome = f"which nobody holds and must be destroyed by hand: {error}"
            log.error("GPU %s: NVML misplaced an instance: %s instead, %s", instance.gpu_uuid, made, outcome)  # noqa: TRY400 -- the sentence is enough
        return NvmlError(codes.UNKNOWN, "nvmlDeviceCreateGpuInstanceWithPlacement", f"{made} instead, {outcome}")

    def _find_filling_profile(self, instance: GpuInstance, profile: Profile) -> ComputeInstanceProfileInfo:
        for info in self._list_compute_profiles(instance):
            if info.slice_count == profile.compute_slices:
                return info
        raise NvmlError(
            codes.NOT_SUPPORTED,
            "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
            f"{profile.name} offers no compute instance of {profile.compute_slices} slices",
        )

    def _list_compute_profiles(self, instance: GpuInstance) -> tuple[ComputeInstanceProfileInfo, ...]:
        """By enum, the REV1 profile last: it has the width of a plain 1c and would shadow it."""
        key = (instance.gpu_uuid, instance.profile_id)
        if key not in self._compute_profiles:
            rev1 = codes.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1
            enums = [enum for enum in range(codes.COMPUTE_INSTANCE_PROFILE_COUNT) if enum != rev1]
            found = [self._get_compute_profile(instance, enum) for enum in (*enums, rev1)]
            self._compute_profiles[key] = tuple(info for info in found if info is not None)
        return self._compute_profiles[key]

    def _get_compute_profile(self, instance: GpuInstance, enum: int) -> ComputeInstanceProfileInfo | None:
        try:
            return self._ask(instance.gpu_uuid).get_compute_instance_profile_info(
                instance.gpu_uuid, instance.gi_id, enum
            )
        except NvmlError as error:
            if error.code in _ABSENT:
                return None
            raise


def _explain_stay(instance: GpuInstance, part: str = "") -> str:
    return (
        f"NVML says that it destroyed {part}GPU instance {instance.gi_id} of GPU {instance.gpu_uuid}, and it is still "
        "there: compare with `nvidia-smi mig -lgi`, and reset the GPU where it stays"
    )


@contextmanager
def _gone_is_done() -> Iterator[None]:
    try:
        yield
    except NvmlError as error:
        if error.code != codes.NOT_FOUND:
            raise
