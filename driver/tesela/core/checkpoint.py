"""What the checkpoint of NVIDIA's DRA driver says of a node's claims, in our words.

That driver keeps one file for all claims. `edge/documents/checkpoint.py` reads it; what becomes of each claim when this
driver takes the node over is `core/adoption.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tesela.core.claim import AllocatedClaim


class TheirKind(StrEnum):
    """What kind of device a prepared one is. A partition made on demand and one that was there look alike."""

    GPU = "gpu"
    MIG = "mig"
    VFIO = "vfio"


@dataclass(frozen=True, slots=True, kw_only=True)
class TheirDevice:
    """One device that NVIDIA's driver prepared.

    `gpu_uuid` is the GPU's, of a partition its parent's; `gi_id`, `ci_id` and `mig_uuid` are of a partition alone.
    `requests` are as the allocation names them. `mps_daemon` is the id of its MPS control daemon, "" without one.
    `time_slice_applied`: None where the checkpoint does not say.
    """

    kind: TheirKind
    pool: str
    device: str
    requests: tuple[str, ...]
    gpu_uuid: str
    share_id: str | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    mig_uuid: str | None = None
    mps_daemon: str = ""
    time_slice_applied: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TheirClaim:
    """One claim. `name` and `namespace` are "" where the checkpoint does not tell, which is the rule once prepared.

    `completed`: False where NVIDIA's driver began to prepare it and did not finish. `allocation` is what was allocated
    then, None where that cannot be read. `problem` is a sentence where the entry cannot be read; it has no `devices`.
    """

    uid: str
    name: str = ""
    namespace: str = ""
    completed: bool = True
    devices: tuple[TheirDevice, ...] = ()
    allocation: AllocatedClaim | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All claims by UID, ascending. `boot_id` is "" where an old release wrote it, which knew no boots."""

    boot_id: str
    claims: tuple[TheirClaim, ...]
