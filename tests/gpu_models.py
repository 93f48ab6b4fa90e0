"""GPUs as the inventory describes them, for tests of pure decisions: the geometry of real boards, facts as data."""

from __future__ import annotations

from dataclasses import replace

from tesela.core.model import Gpu, LivePartition, Placement, Profile
from tesela.core.roster import KnownGpu, Roster

MIB = 1 << 20
GIB = 1 << 30


def _profile(name, profile_id, instances, mib, counts, starts, size):
    compute = int(name[0])
    multiprocessors, copy, decoders, encoders, jpeg, ofa = counts
    return Profile(
        profile_id=profile_id,
        profile_enum=profile_id % 18,
        name=name,
        compute_slices=compute,
        max_instances=instances,
        memory_bytes=mib * MIB,
        multiprocessors=multiprocessors,
        copy_engines=copy,
        decoders=decoders,
        encoders=encoders,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
        placements=tuple(Placement(start=start, size=size) for start in starts),
    )


A100_40_PROFILES = (
    _profile("7g.40gb", 0, 1, 40192, (98, 7, 5, 0, 1, 1), (0,), 8),
    _profile("1g.5gb", 19, 7, 4864, (14, 1, 0, 0, 0, 0), range(7), 1),
    _profile("1g.5gb+me", 20, 1, 4864, (14, 1, 1, 0, 1, 1), range(7), 1),
    _profile("1g.10gb", 15, 4, 9856, (14, 1, 1, 0, 0, 0), (0, 2, 4, 6), 2),
    _profile("2g.10gb", 14, 3, 9856, (28, 2, 1, 0, 0, 0), (0, 2, 4), 2),
    _profile("3g.20gb", 9, 2, 19968, (42, 3, 2, 0, 0, 0), (0, 4), 4),
    _profile("4g.20gb", 5, 1, 19968, (56, 4, 2, 0, 0, 0), (0,), 4),
)
H100_80_PROFILES = (
    _profile("1g.10gb", 19, 7, 9984, (16, 1, 1, 0, 1, 0), range(7), 1),
    _profile("1g.10gb+me", 20, 1, 9984, (16, 1, 1, 0, 1, 1), range(7), 1),
    _profile("1g.20gb", 15, 4, 20096, (26, 1, 1, 0, 1, 0), (0, 2, 4, 6), 2),
    _profile("2g.20gb", 14, 3, 20096, (32, 2, 2, 0, 2, 0), (0, 2, 4), 2),
    _profile("3g.40gb", 9, 2, 40448, (60, 3, 3, 0, 3, 0), (0, 4), 4),
    _profile("4g.40gb", 5, 1, 40448, (64, 4, 4, 0, 4, 0), (0,), 4),
    _profile("7g.80gb", 0, 1, 81152, (132, 8, 7, 0, 7, 1), (0,), 8),
)
A30_PROFILES = (
    _profile("1g.6gb", 14, 4, 5952, (14, 1, 1, 0, 0, 0), range(4), 1),
    _profile("1g.6gb+me", 21, 1, 5952, (14, 1, 1, 0, 1, 1), range(4), 1),
    _profile("2g.12gb", 5, 2, 11968, (28, 2, 2, 0, 0, 0), (0, 2), 2),
    _profile("4g.24gb", 0, 1, 24064, (56, 4, 4, 0, 1, 1), (0,), 4),
)
RTX_PRO_6000_PROFILES = (
    _profile("1g.24gb", 14, 4, 24192, (46, 1, 1, 1, 1, 0), (0, 3, 6, 9), 3),
    _profile("1g.24gb+me", 21, 1, 24192, (46, 1, 1, 1, 1, 1), (0, 3, 6, 9), 3),
    _profile("1g.24gb+gfx", 47, 4, 24192, (46, 1, 1, 1, 1, 0), (0, 3, 6, 9), 3),
    _profile("1g.24gb+me.all", 65, 1, 24192, (46, 1, 4, 4, 4, 1), (0, 3, 6, 9), 3),
    _profile("1g.24gb-me", 67, 4, 24192, (46, 1, 0, 0, 0, 0), (0, 3, 6, 9), 3),
    _profile("2g.48gb", 5, 2, 48512, (94, 2, 2, 2, 2, 0), (0, 6), 6),
    _profile("2g.48gb+gfx", 35, 2, 48512, (94, 2, 2, 2, 2, 0), (0, 6), 6),
    _profile("2g.48gb+me.all", 64, 1, 48512, (94, 2, 4, 4, 4, 1), (0, 6), 6),
    _profile("2g.48gb-me", 66, 2, 48512, (94, 2, 0, 0, 0, 0), (0, 6), 6),
    _profile("4g.96gb", 0, 1, 97408, (188, 4, 4, 4, 4, 1), (0,), 12),
    _profile("4g.96gb+gfx", 32, 1, 97408, (188, 4, 4, 4, 4, 1), (0,), 12),
)
PROFILES = {
    "a100-40gb": A100_40_PROFILES,
    "h100-80gb": H100_80_PROFILES,
    "a30-24gb": A30_PROFILES,
    "rtx-pro-6000": RTX_PRO_6000_PROFILES,
}


def gpu_uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def a100(index: int = 0, **facts) -> Gpu:
    """An A100-40GB in MIG mode; Ampere needs a reset to change it."""
    known = Gpu(
        uuid=gpu_uuid(index),
        index=index,
        minor=index,
        pci_bus_id=f"00000000:{index + 7:02X}:00.0",
        product_name="NVIDIA A100-SXM4-40GB",
        brand="Nvidia",
        architecture="Ampere",
        cuda_compute_capability="8.0",
        memory_bytes=40 * GIB,
        mig_enabled=True,
        resetless_mig=False,
        profiles=A100_40_PROFILES,
    )
    return replace(known, **facts)


def h100(index: int = 0, **facts) -> Gpu:
    """An H100-80GB with MIG off; Hopper changes the mode without a reset."""
    known = replace(
        a100(index),
        product_name="NVIDIA H100 80GB HBM3",
        architecture="Hopper",
        cuda_compute_capability="9.0",
        memory_bytes=81559 * MIB,
        mig_enabled=False,
        resetless_mig=True,
        profiles=H100_80_PROFILES,
    )
    return replace(known, **facts)


def t4(index: int = 0, **facts) -> Gpu:
    """A GPU without MIG."""
    known = replace(
        a100(index),
        product_name="Tesla T4",
        brand="Tesla",
        architecture="Turing",
        cuda_compute_capability="7.5",
        memory_bytes=15360 * MIB,
        mig_enabled=None,
        profiles=(),
    )
    return replace(known, **facts)


def known(gpu: Gpu, *, present: bool = True) -> KnownGpu:
    return KnownGpu(number=gpu.minor, gpu=gpu, present=present, generation=1)


def roster(*gpus: Gpu | KnownGpu) -> Roster:
    return Roster(
        boot_id="boot-1",
        module_token="module-1",
        driver_version="580.95.05",
        cuda_driver_version=13000,
        gpus=tuple(gpu if isinstance(gpu, KnownGpu) else known(gpu) for gpu in gpus),
    )


def live(gpu: Gpu, name: str, start: int, *, gi_id: int = 1) -> LivePartition:
    profile = next(p for p in gpu.profiles if p.name == name)
    placement = next(p for p in profile.placements if p.start == start)
    return LivePartition(
        gpu_uuid=gpu.uuid,
        profile_id=profile.profile_id,
        placement=placement,
        gi_id=gi_id,
        ci_id=0,
        mig_uuid=f"MIG-00000000-0000-4000-8000-{gi_id:012d}",
    )
