"""Named calls on MIG devices, GPU instances and compute instances: what the driver's own port does not ask."""

from __future__ import annotations

from itertools import chain
from typing import Final

from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.models import ComputePlacement, default_placements
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import NO_ANSWER, GpuRow, Row, number
from tesela.edge.simulator.targets import Asked, NamedAnswer


def _create_gpu_instance(asked: Asked) -> NamedAnswer:
    """nvmlDeviceCreateGpuInstance: the driver takes the first free placement of an order of its own."""
    gpu, profile_id = asked.gpu, asked.request.numbers[0]
    profile = gpu.model.profile_of_id(profile_id)
    order = () if profile is None else default_placements(gpu.model, profile)
    wanted = next((p for p in order if gpu.is_free(p)), None)
    if wanted is None:
        # None is free, or there is no such profile; the rule for a chosen placement says which.
        wanted = order[0] if order else Placement(start=0, size=1)
    return number(gpu.create_gpu_instance(profile_id, wanted).gi_id)


def _gpu_instance_profile_by_id(asked: Asked) -> NamedAnswer:
    profile = asked.gpu.model.profile_of_id(asked.request.numbers[0])
    if profile is None:
        raise Refused(codes.NOT_SUPPORTED)
    info = asked.gpu.gpu_instance_profile(profile.profile_enum)
    return NamedAnswer(
        (
            info.profile_id,
            info.slice_count,
            info.instance_count,
            info.multiprocessor_count,
            info.copy_engine_count,
            info.decoder_count,
            info.encoder_count,
            info.jpeg_count,
            info.ofa_count,
            info.memory_size_mib,
        ),
        info.name,
    )


def _compute_instance_profile(asked: Asked) -> NamedAnswer:
    """With the engines, which every compute instance shares with the rest of its GPU instance."""
    instance = asked.instance()
    info, engines = (
        asked.gpu.compute_instance_profile(instance.gi_id, asked.request.numbers[0]),
        instance.profile.engines,
    )
    shape = (info.profile_id, info.slice_count, info.instance_count, info.multiprocessor_count)
    shared = (engines.copy, engines.decoder, engines.encoder, engines.jpeg, engines.ofa)
    return NamedAnswer(shape + shared, info.name)


def _compute_capacity(asked: Asked) -> NamedAnswer:
    return number(asked.gpu.remaining_compute_capacity(asked.instance().gi_id, asked.request.numbers[0]))


def _compute_placements(asked: Asked) -> NamedAnswer:
    """All legal placements, free or not, in compute slices of the GPU instance."""
    legal = asked.gpu.possible_compute_placements(asked.instance().gi_id, asked.request.numbers[0])
    return NamedAnswer(tuple(chain.from_iterable((p.start, p.size) for p in legal)))


def _create_compute_instance(asked: Asked) -> NamedAnswer:
    profile_id, start, size = asked.request.numbers
    if start < 0 or size < 1:
        raise Refused(codes.INVALID_ARGUMENT)
    placement = ComputePlacement(start=start, size=size)
    return number(asked.gpu.create_compute_instance(asked.instance().gi_id, profile_id, placement).ci_id)


def _compute_instance_by_id(asked: Asked) -> NamedAnswer:
    if asked.request.numbers[0] not in asked.instance().compute:
        raise Refused(codes.NOT_FOUND)
    return NO_ANSWER


def _compute_instance_info(asked: Asked) -> NamedAnswer:
    _, compute = asked.mig_device()
    return NamedAnswer((compute.profile.profile_id, compute.placement.start, compute.placement.size))


def _attributes(asked: Asked) -> NamedAnswer:
    """The multiprocessors of the compute instance, the engines and memory of the GPU instance that it shares."""
    instance, compute = asked.mig_device()
    engines = instance.profile.engines
    return NamedAnswer(
        (
            compute.profile.multiprocessors,
            engines.copy,
            engines.decoder,
            engines.encoder,
            engines.jpeg,
            engines.ofa,
            instance.profile.compute_slices,
            compute.profile.compute_slices,
            instance.profile.memory_mib,
        )
    )


ROWS: Final[tuple[Row, ...]] = (
    GpuRow(function="nvmlDeviceCreateGpuInstance", target="G", numbers=1, changes=True, rule=_create_gpu_instance),
    GpuRow(
        function="nvmlDeviceGetGpuInstanceProfileInfoByIdV", target="G", numbers=1, rule=_gpu_instance_profile_by_id
    ),
    GpuRow(
        function="nvmlGpuInstanceGetComputeInstanceProfileInfoV", target="I", numbers=1, rule=_compute_instance_profile
    ),
    GpuRow(
        function="nvmlGpuInstanceGetComputeInstanceRemainingCapacity", target="I", numbers=1, rule=_compute_capacity
    ),
    GpuRow(
        function="nvmlGpuInstanceGetComputeInstancePossiblePlacements", target="I", numbers=1, rule=_compute_placements
    ),
    GpuRow(
        function="nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        target="I",
        numbers=3,
        changes=True,
        rule=_create_compute_instance,
    ),
    GpuRow(function="nvmlGpuInstanceGetComputeInstanceById", target="I", numbers=1, rule=_compute_instance_by_id),
    GpuRow(function="nvmlComputeInstanceGetInfo_v2", target="C", rule=_compute_instance_info),
    GpuRow(function="nvmlDeviceGetAttributes_v2", target="M", rule=_attributes),
)
