"""The nouns: what exists on a node and what a claim was given. Fields and tiny properties only, no verbs.

`Partition` is specified, `LivePartition` exists; "device" is the DRA word for what a ResourceSlice lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DRIVER_NAME = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Placement:
    """`size` memory slices from `start` on (nvmlGpuInstancePlacement_t); never compute slices."""

    start: int
    size: int

    @property
    def slices(self) -> range:
        """The memory slices covered."""
        return range(self.start, self.start + self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A MIG profile of one GPU model as its driver reports it; C == G, one compute instance fills the GPU instance."""

    profile_id: int
    profile_enum: int
    name: str
    compute_slices: int
    max_instances: int
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as discovered. Optional facts are None where the machine does not tell.

    `mig_enabled` is None on a GPU without MIG. `resetless_mig`: the mode changes without a GPU reset (field 184, else
    Hopper or later and no vGPU). `profiles` is empty where partitions cannot be made.
    """

    uuid: str
    index: int
    minor: int
    pci_bus_id: str
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: str
    memory_bytes: int | None
    mig_enabled: bool | None
    resetless_mig: bool
    profiles: tuple[Profile, ...]
    addressing_mode: str | None = None
    numa_node: int | None = None
    pcie_root: str | None = None
    fabric_clique: str | None = None

    @property
    def grid_size(self) -> int:
        """Memory slices of this GPU: the largest placement's end; 0 without MIG profiles."""
        return max((p.start + p.size for profile in self.profiles for p in profile.placements), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance that exists: the memory slices it holds, whatever stands inside it."""

    gpu_uuid: str
    profile_id: int
    placement: Placement
    gi_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePartition:
    """A GPU instance that exists. `ci_id` and `mig_uuid` are None for one without its compute instance.

    One with several compute instances has the first one's `ci_id` and no `mig_uuid`: we never make such.
    """

    gpu_uuid: str
    profile_id: int
    placement: Placement
    gi_id: int
    ci_id: int | None
    mig_uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What one look at NVML and the host found; replaced, never edited. `gpus` are in NVML index order.

    `silent` names GPUs that NVML lists but that did not answer this time: nothing is known about them, so nothing
    changes for them. A GPU that is neither in `gpus` nor in `silent` is gone.
    """

    driver_version: str
    cuda_driver_version: int
    gpus: tuple[Gpu, ...]
    partitions: tuple[LivePartition, ...]
    silent: frozenset[str] = frozenset()


class Shape(StrEnum):
    """What a GPU offers, by policy or by its mode."""

    WHOLE = "whole"
    ON_DEMAND = "onDemand"
    STATIC = "static"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """The claim that the kubelet names: state is keyed by `uid`, names are for people."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device as answered to the kubelet (dra.v1 Device). `request_names` are base names, without `/subrequest`."""

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one claim is not served: a sentence for the pod's owner that names claim, device, cause and next step."""

    message: str
