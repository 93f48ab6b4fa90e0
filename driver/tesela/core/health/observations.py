"""What may be observed about the health of GPUs: the closed union that `rules.plan_health` takes.

An observation says what was seen, never what it means: that is the table's (`signals.py`). Whoever observes need not
know what stands already, so each may be told again and again. Two of one kind on one GPU within one batch: the later
one holds, but for `XidSeen` and `StormSeen`, which are counted together.

What the roster says is no observation: `plan_health` takes the roster itself, so that the boot, the module load, the
generation and the presence of each GPU are always those of one look at the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tesela.core.model import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSeen:
    """`count` events of one Xid (NVML_EVENT_TYPE_XID), together.

    `placement` is that of the GPU instance which the event names; None where it names none, or one that is not known
    any more: then it concerns all of the GPU (nvml.h, nvmlEventData_t).
    """

    gpu_uuid: str
    xid: int
    placement: Placement | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StormSeen:
    """`count` events of NVML that single-bit errors come in a storm (NVML_EVENT_TYPE 0x200)."""

    gpu_uuid: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one look at a GPU's counters and states found. None: not asked, not supported, refused; it changes nothing.

    Counts are nvmlDeviceGetTotalEccErrors: volatile since the driver was loaded or the GPU was reset, aggregate over
    the life of the board. `remap_pending` and `remap_failure` are nvmlDeviceGetRemappedRows or fields 144 and 145.
    `recovery_action` is field 230 (a key of codes.RECOVERY_ACTIONS), `fabric_state` one of codes.FABRIC_*,
    `fabric_status` NVML's code of how joining the fabric ended, which counts in the state COMPLETED alone.
    """

    gpu_uuid: str
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    ecc_corrected_volatile: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    recovery_action: int | None = None
    fabric_state: int | None = None
    fabric_status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLost:
    """NVML lists the GPU and answers GPU_IS_LOST about it. One that NVML does not list is the roster's to tell."""

    gpu_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAnswers:
    """A call on this GPU that a lost one refuses was answered. Tell it at every look that went well."""

    gpu_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wedged:
    """All GPUs inside which a call of this process hangs now; `whole_node` where NVML as a whole is suspect.

    `ended` are those of which that was said before and is not so any more. Of the others this process knows nothing: it
    may have begun just now, or another one's call may hang. That a GPU hangs no longer is told by `GpuAnswers`, too.
    """

    gpu_uuids: frozenset[str] = frozenset()
    whole_node: bool = False
    ended: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMissing:
    """The device node of a GPU is not there, though NVML lists the GPU: no container could open it."""

    gpu_uuid: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePresent:
    """The device node of this GPU is there."""

    gpu_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetSeen:
    """The GPU was reset since what stands was seen, and neither a boot nor a load of the driver shows it.

    Tell it only of what proves a reset (`Lookout.take_resets`): partitions that went are none while this process had
    NVML open. Counters and recovery actions show in a `Reading`, a boot and a load of the driver in the roster.
    """

    gpu_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeHeld:
    """A change of the GPU's MIG mode was refused again and again; `holder` says by whom, as in `python (4711)`.

    `wants_mig` is the mode that cannot be had: True fences the partitions, False the whole GPU.
    """

    gpu_uuid: str
    wants_mig: bool
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFree:
    """The GPU's MIG mode can be changed, or has been: nobody holds it."""

    gpu_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLeft:
    """NVIDIA's driver left an MPS control daemon on the GPU, which its claim's end does not stop.

    Tell it once, when the node is taken over: a person takes it back when the daemon is gone.
    """

    gpu_uuid: str


Observation: TypeAlias = (
    XidSeen
    | StormSeen
    | Reading
    | GpuLost
    | GpuAnswers
    | Wedged
    | NodeMissing
    | NodePresent
    | ResetSeen
    | ModeHeld
    | ModeFree
    | DaemonLeft
)
