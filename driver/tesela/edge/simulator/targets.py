"""What a named call is about: its request and answer, and the GPU, GPU instance or MIG device that it is asked of.

Finding the target is a rule of its own, because handles outlive what they name: an instance that is gone is NOT_FOUND.
What the functions answer is in the `named_*` modules and `telemetry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import ComputeInstance, GpuInstance, SimulatedGpu
from tesela.edge.simulator.refused import Refused

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

TargetKind: TypeAlias = Literal["G", "D", "M", "I", "C"]
"""G: a GPU. D: a GPU or a MIG device. M: a MIG device. I: a GPU instance. C: a compute instance."""


class NamedRequest(NamedTuple):
    """A call of `function`, named as NVML does. `gpu`: a UUID, "" for none; `numbers`: signed."""

    function: str
    gpu: str = ""
    gi_id: int | None = None
    ci_id: int | None = None
    numbers: tuple[int, ...] = ()
    text: str = ""


class NamedAnswer(NamedTuple):
    """What the function returns through its pointers; a negative number travels in two's complement."""

    numbers: tuple[int, ...] = ()
    text: str = ""


@dataclass(slots=True)
class Asked:
    """A request and its living target, for as long as the caller holds the GPU's lock."""

    machine: Machine
    gpu: SimulatedGpu
    request: NamedRequest
    gpu_instance: GpuInstance | None = None
    compute_instance: ComputeInstance | None = None

    @property
    def is_mig_device(self) -> bool:
        """Whether the target is one of the GPU's MIG devices."""
        return self.compute_instance is not None

    def mig_device(self) -> tuple[GpuInstance, ComputeInstance]:
        """The target of a function that takes a MIG device or a compute instance. NOT_SUPPORTED: it is the GPU."""
        if self.gpu_instance is None or self.compute_instance is None:
            raise Refused(codes.NOT_SUPPORTED)
        return self.gpu_instance, self.compute_instance

    def instance(self) -> GpuInstance:
        """The target of a function that takes a GPU instance. INVALID_ARGUMENT: there is none."""
        if self.gpu_instance is None:
            raise Refused(codes.INVALID_ARGUMENT)
        return self.gpu_instance


def find_target(machine: Machine, gpu: SimulatedGpu, kind: TargetKind, request: NamedRequest) -> Asked:
    """The target of `request`, which a function of that `kind` takes; the caller holds the lock of `gpu`.

    Refused: NOT_FOUND for an instance that does not live, NOT_SUPPORTED for a MIG device where only GPUs are answered,
    and the other way round, INVALID_ARGUMENT for ids that name neither.
    """
    gi_id, ci_id = request.gi_id, request.ci_id
    if gi_id is None:
        if ci_id is not None or kind in {"I", "C"}:
            raise Refused(codes.INVALID_ARGUMENT)
        if kind == "M":
            raise Refused(codes.NOT_SUPPORTED)
        return Asked(machine, gpu, request)
    instance = gpu.instances.get(gi_id)
    if instance is None:
        raise Refused(codes.NOT_FOUND)
    if ci_id is None:
        if kind != "I":
            raise Refused(codes.INVALID_ARGUMENT)
        return Asked(machine, gpu, request, instance)
    compute = instance.compute.get(ci_id)
    if compute is None:
        raise Refused(codes.NOT_FOUND)
    if kind == "I":
        raise Refused(codes.INVALID_ARGUMENT)
    if kind == "G":
        raise Refused(codes.NOT_SUPPORTED)
    return Asked(machine, gpu, request, instance, compute)
