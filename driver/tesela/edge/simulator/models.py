"""The GPU models the simulator knows: one JSON table per model under `tables/`, read and checked here.

Every figure that no source lists keeps its basis next to it: memory `reported` (a value NVML returned), `derived` (from
the printed GiB), `lgip` (printed GiB rounded up to the next eighth), `mock` (a rounded value of a public mock);
placements and compute instances `listed` or `inferred`. No behaviour belongs here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from tesela.core.errors import DocumentError
from tesela.core.model import Placement
from tesela.edge.nvml import codes

_TABLES: Final = resources.files("tesela.edge.simulator") / "tables"
_PROFILE_NAME: Final = re.compile(r"^[1-9]g\.[0-9]+gb(\+me|\+me\.all|\+gfx|-me)?$")
_MEMORY_BASES: Final = frozenset({"reported", "derived", "lgip", "mock"})
_LISTED_BASES: Final = frozenset({"listed", "inferred"})
_ALIASES: Final = {"a30": "a30-24gb"}
MAX_GPU_INSTANCES: Final = 15
"""GPU-instance ids are 0..14: the capability minors leave room for fifteen (`nvidia-caps/mig-minors`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Copy and media engines: what a profile takes, or what a GPU has."""

    copy: int
    decoder: int
    encoder: int
    jpeg: int
    ofa: int

    def __add__(self, other: Engines) -> Engines:
        return Engines(
            copy=self.copy + other.copy,
            decoder=self.decoder + other.decoder,
            encoder=self.encoder + other.encoder,
            jpeg=self.jpeg + other.jpeg,
            ofa=self.ofa + other.ofa,
        )

    def fits(self, total: Engines) -> bool:
        """Whether no kind of engine exceeds `total`."""
        return (
            self.copy <= total.copy
            and self.decoder <= total.decoder
            and self.encoder <= total.encoder
            and self.jpeg <= total.jpeg
            and self.ofa <= total.ofa
        )


NO_ENGINES: Final = Engines(copy=0, decoder=0, encoder=0, jpeg=0, ofa=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstanceProfile:
    """A compute-instance profile inside one GPU-instance profile; its id equals its enum on every board seen."""

    name: str
    profile_enum: int
    compute_slices: int
    max_instances: int
    multiprocessors: int

    @property
    def profile_id(self) -> int:
        """What `create_compute_instance` takes."""
        return self.profile_enum


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePlacement:
    """`size` compute slices from `start` on, inside one GPU instance (nvmlComputeInstancePlacement_t)."""

    start: int
    size: int

    @property
    def slices(self) -> range:
        """The compute slices covered."""
        return range(self.start, self.start + self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstanceProfile:
    """A GPU-instance profile of one model."""

    name: str
    profile_id: int
    profile_enum: int
    compute_slices: int
    max_instances: int
    memory_mib: int
    memory_basis: str
    multiprocessors: int
    engines: Engines
    placements: tuple[Placement, ...]
    placement_basis: str
    compute_instances: tuple[ComputeInstanceProfile, ...]
    compute_instance_basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One GPU model; `profiles` in the order of the table (smallest first)."""

    model: str
    product_name: str
    architecture: int
    compute_capability: tuple[int, int]
    brand: int
    pci_device_id: int
    resetless_mig: bool
    addressing_mode: str
    board_memory_bytes: int
    board_memory_basis: str
    compute_slices: int
    memory_slices: int
    profiles: tuple[GpuInstanceProfile, ...]

    @property
    def reserved_memory_bytes(self) -> int:
        """What the driver keeps of the board's memory for itself: what is left beside the largest GPU instance."""
        return self.board_memory_bytes - max(p.memory_mib << 20 for p in self.profiles)

    @property
    def engines(self) -> Engines:
        """Engines of the whole GPU: of each kind, the most that any profile has."""
        return Engines(
            copy=max(p.engines.copy for p in self.profiles),
            decoder=max(p.engines.decoder for p in self.profiles),
            encoder=max(p.engines.encoder for p in self.profiles),
            jpeg=max(p.engines.jpeg for p in self.profiles),
            ofa=max(p.engines.ofa for p in self.profiles),
        )

    def profile_of_id(self, profile_id: int) -> GpuInstanceProfile | None:
        """The profile that create and list calls name by `profile_id`."""
        return next((p for p in self.profiles if p.profile_id == profile_id), None)

    def profile_of_enum(self, profile_enum: int) -> GpuInstanceProfile | None:
        """The profile that nvmlDeviceGetGpuInstanceProfileInfo names by `profile_enum`."""
        return next((p for p in self.profiles if p.profile_enum == profile_enum), None)


@cache
def list_models() -> tuple[str, ...]:
    """Names of all models, sorted."""
    names = (entry.name for entry in _TABLES.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


@cache
def load_model(name: str) -> GpuModel:
    """The model called `name`. DocumentError: no such model, or a table that no GPU could have."""
    name = _ALIASES.get(name, name)
    if name not in list_models():
        raise DocumentError("model", f"no GPU model {name!r}; known are {', '.join(list_models())}")
    return parse_model(json.loads((_TABLES / f"{name}.json").read_text(encoding="utf-8")))


def parse_model(document: dict[str, Any]) -> GpuModel:
    """A model from a table in our format 1. DocumentError names the field that is missing or impossible."""
    try:
        model = _model(document)
    except KeyError as error:
        raise DocumentError(str(error.args[0]), "is missing from the table") from error
    except (TypeError, ValueError) as error:
        raise DocumentError(str(document.get("model", "model")), f"a field has the wrong type: {error}") from error
    _check_model(model)
    return model


def _model(document: dict[str, Any]) -> GpuModel:
    if document["format"] != 1:
        raise DocumentError("format", f"is {document['format']!r}; this version reads format 1")
    architectures = {name: number for number, name in codes.ARCHITECTURES.items()}
    if document["architecture"] not in architectures:
        raise DocumentError("architecture", f"{document['architecture']!r} is unknown to NVML")
    major, minor = document["compute_capability"]
    return GpuModel(
        model=document["model"],
        product_name=document["product_name"],
        architecture=architectures[document["architecture"]],
        compute_capability=(int(major), int(minor)),
        brand=int(document["brand"]),
        pci_device_id=int(document["pci_device_id"], 16),
        resetless_mig=bool(document["resetless_mig"]),
        addressing_mode=document["addressing_mode"],
        board_memory_bytes=int(document["board_memory_mib"]) << 20,
        board_memory_basis=document["board_memory_basis"],
        compute_slices=int(document["compute_slices"]),
        memory_slices=int(document["memory_slices"]),
        profiles=tuple(_profile(row) for row in document["profiles"]),
    )


def _profile(row: dict[str, Any]) -> GpuInstanceProfile:
    size = int(row["placement_size"])
    return GpuInstanceProfile(
        name=row["name"],
        profile_id=int(row["profile_id"]),
        profile_enum=int(row["profile_enum"]),
        compute_slices=int(row["compute_slices"]),
        max_instances=int(row["max_instances"]),
        memory_mib=int(row["memory_mib"]),
        memory_basis=row["memory_basis"],
        multiprocessors=int(row["multiprocessors"]),
        engines=Engines(**{kind: int(count) for kind, count in row["engines"].items()}),
        placements=tuple(Placement(start=int(start), size=size) for start in row["placement_starts"]),
        placement_basis=row["placement_basis"],
        compute_instances=tuple(ComputeInstanceProfile(**compute) for compute in row["compute_instances"]),
        compute_instance_basis=row["compute_instance_basis"],
    )


def _check_model(model: GpuModel) -> None:
    def require(holds: bool, path: str, problem: str) -> None:
        if not holds:
            raise DocumentError(f"{model.model}.{path}", problem)

    ids = [p.profile_id for p in model.profiles]
    enums = [p.profile_enum for p in model.profiles]
    names = [p.name for p in model.profiles]
    require(bool(ids), "profiles", "a model needs at least one profile")
    require(len(set(ids)) == len(ids), "profiles", "two profiles share a profile_id")
    require(len(set(enums)) == len(enums), "profiles", "two profiles share a profile_enum")
    require(len(set(names)) == len(names), "profiles", "two profiles share a name")
    whole = any(p.placements == (Placement(start=0, size=model.memory_slices),) for p in model.profiles)
    require(whole, "memory_slices", "no profile covers the whole grid")
    for profile in model.profiles:
        for problem in _profile_problems(model, profile):
            require(False, f"profiles[{profile.name}]", problem)


def _profile_problems(model: GpuModel, profile: GpuInstanceProfile) -> list[str]:
    covered = [s for placement in profile.placements for s in placement.slices]
    checks = {
        "its name is no MIG profile name": _PROFILE_NAME.match(profile.name) is not None,
        "its profile_enum is none of NVML's": 0 <= profile.profile_enum < codes.GPU_INSTANCE_PROFILE_COUNT,
        "its compute_slices exceed the GPU's": 0 < profile.compute_slices <= model.compute_slices,
        "its name and compute_slices disagree": profile.name.startswith(f"{profile.compute_slices}g."),
        "its memory exceeds the board's": 0 < profile.memory_mib << 20 <= model.board_memory_bytes,
        "its memory_basis is unknown": profile.memory_basis in _MEMORY_BASES,
        "its placement_basis is unknown": profile.placement_basis in _LISTED_BASES,
        "its compute_instance_basis is unknown": profile.compute_instance_basis in _LISTED_BASES,
        "a placement leaves the grid": all(0 <= s < model.memory_slices for s in covered),
        "its placements overlap": len(set(covered)) == len(covered),
        "its max_instances exceed its placements": 0 < profile.max_instances <= len(profile.placements),
        "an engine count is negative": NO_ENGINES.fits(profile.engines),
        "no compute instance fills it": any(
            c.compute_slices == profile.compute_slices for c in profile.compute_instances
        ),
        "its compute instances exceed its slices": all(
            0 < c.compute_slices * c.max_instances <= profile.compute_slices for c in profile.compute_instances
        ),
        "a placement has no GPU-instance id": all(
            0 <= gi_id_of(model.memory_slices, p) < MAX_GPU_INSTANCES for p in profile.placements
        ),
    }
    return [problem for problem, holds in checks.items() if not holds]


def gi_id_of(memory_slices: int, placement: Placement) -> int:
    """The GPU-instance id that a placement gets: numbers of a binary tree, whole GPU 0, halves 1-2, and so on.

    It reproduces the examples in the MIG guide (1g at 0..6: ids 7..13; 3g: 1 and 2). Drivers promise no such mapping.
    """
    return memory_slices // placement.size - 1 + placement.start // placement.size


def compute_placements(instance: GpuInstanceProfile, profile: ComputeInstanceProfile) -> tuple[ComputePlacement, ...]:
    """Where a compute instance may lie in its GPU instance: aligned to the next power of two of its size.

    Inferred from the instance counts that drivers print (in 7g: 2c three times, 3c twice, 4c once); no source lists it.
    """
    step = 1 << (profile.compute_slices - 1).bit_length()
    starts = range(0, instance.compute_slices - profile.compute_slices + 1, step)
    return tuple(ComputePlacement(start=s, size=profile.compute_slices) for s in starts[: profile.max_instances])


_DEFAULT_STARTS: Final[dict[int, dict[int, tuple[int, ...]]]] = {
    8: {1: (6, 4, 5, 0, 1, 2, 3), 2: (6, 4, 0, 2), 4: (4, 0), 8: (0,)},
}
"""By memory slices of the GPU and of the placement: the order in which drivers were seen to fill an A100 (MIG guide).

A 3g was seen at 4 first in one example and at 0 in another; double-memory 1g is inferred. Nothing promises an order.
"""


def default_placements(model: GpuModel, profile: GpuInstanceProfile) -> tuple[Placement, ...]:
    """The placements of `profile` in the order in which a driver tries them where nobody chose one.

    Boards of which no order was seen fill from the high end, as the seven-slice boards mostly do.
    """
    high_first = tuple(sorted(profile.placements, key=lambda p: -p.start))
    order = _DEFAULT_STARTS.get(model.memory_slices, {}).get(profile.placements[0].size)
    if order is None:
        return high_first
    return tuple(sorted(high_first, key=lambda p: order.index(p.start) if p.start in order else len(order)))
