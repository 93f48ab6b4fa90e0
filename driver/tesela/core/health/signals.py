"""The table of signals: each with its threshold, what it is counted by, its state, what takes it back, its source.

Data and how an operator's policy changes it; what follows from a row is `rules.py`. NoExecute is never a default: the
eviction that follows deletes pods without regard to their disruption budgets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tesela.core.errors import DocumentError
from tesela.core.health.model import Counted, Effect, Evidence, HealthState, Reach, Signal
from tesela.core.health.xids import XIDS

_CATALOGUE: Final = "NVIDIA Xid catalogue"
_MEMORY: Final = "NVIDIA GPU Memory Error Management"
_ACTION: Final = "NVML field 230 (nvmlDeviceGpuRecoveryAction_t)"
_RESET: Final = "drain the GPU and reset it"
_RESTART: Final = "restart the application if it failed"
_XID: Final = re.compile(r"xid-(0|[1-9][0-9]*)")

XID_OTHER: Final = "xid-other"
"""The row of every Xid without one of its own."""
_OTHER_MEANING: Final = "an Xid that the table does not know"

RESET_ACTIONS: Final = frozenset({1, 2, 4, 6, 7})
"""Recovery actions that cannot end without the GPU being reset: NONE after one of them proves that it was."""


def name_xid(xid: int) -> str:
    """The signal of an Xid."""
    return f"xid-{xid}"


def name_recovery_action(action: int) -> str:
    """The signal of a recovery action other than NONE; one that this release does not know is `other`."""
    return f"recovery-action-{_ACTION_NAMES.get(action, 'other')}"


_ACTION_NAMES: Final = {
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}
RECOVERY_ACTIONS: Final = tuple(name_recovery_action(action) for action in (*_ACTION_NAMES, 0))
"""The signals of field 230, the unknown one last: at most one of them is so."""


def _list_xids() -> list[Signal]:
    known = [
        Signal(
            name=name_xid(xid),
            key="xid",
            value=str(xid),
            meaning=meaning,
            remedy=_REMEDIES[state, evidence],
            state=state,
            evidence=evidence,
            source=_CATALOGUE,
            counted=Counted.EVENTS,
            effect=Effect.NONE if state is HealthState.HEALTHY else Effect.NO_SCHEDULE,
        )
        for xid, meaning, state, evidence in XIDS
    ]
    other = Signal(
        name=XID_OTHER,
        key="xid",
        value="other",
        meaning=_OTHER_MEANING,
        remedy="look it up in NVIDIA's Xid catalogue, then reset the GPU or give it a row in the policy file",
        # It may be the hardware, so nothing new is given out; it may not be, so nobody is told that what runs is lost.
        state=HealthState.DEGRADED,
        evidence=Evidence.RESET,
        source="house rule: unknown is neither harmless nor proof",
        counted=Counted.EVENTS,
    )
    return [*known, other]


_REMEDIES: Final = {
    (HealthState.HEALTHY, Evidence.RESET): _RESTART,
    (HealthState.DEGRADED, Evidence.RESET): "drain the GPU when convenient and reset it",
    (HealthState.UNHEALTHY, Evidence.RESET): _RESET,
    (HealthState.UNHEALTHY, Evidence.BOOT): "drain the node, check the hardware and reboot",
}


def _list_actions() -> list[Signal]:
    rows = (
        (1, "the GPU wants a reset", _RESET, HealthState.UNHEALTHY),
        (2, "the node wants a reboot", "drain the node and reboot it", HealthState.UNHEALTHY),
        (3, "peer-to-peer traffic is to be drained", "end the jobs that use NVLink", HealthState.DEGRADED),
        (4, "the GPU wants to be drained and reset", _RESET, HealthState.DEGRADED),
        (5, "the IMEX domain is to be recovered", "recover the IMEX domain", HealthState.DEGRADED),
        (6, "the PCIe bus of the GPU wants a reset", "drain the GPU and reset its bus", HealthState.UNHEALTHY),
        (7, "the machine wants a reboot", "drain the node and reboot the machine", HealthState.UNHEALTHY),
        (0, "an action that this release does not know", "see nvidia-smi -q", HealthState.UNHEALTHY),
    )
    return [
        Signal(
            name=name_recovery_action(action),
            key="recovery-action",
            value=_ACTION_NAMES.get(action, "other"),
            meaning=meaning,
            remedy=remedy,
            state=state,
            evidence=Evidence.READING,
            source=_ACTION,
            counted=Counted.STATE,
        )
        for action, meaning, remedy, state in rows
    ]


ECC_UNCORRECTED_VOLATILE: Final = "ecc-uncorrected-volatile"
ECC_UNCORRECTED_AGGREGATE: Final = "ecc-uncorrected-aggregate"
ECC_CORRECTED_VOLATILE: Final = "ecc-corrected-volatile"
ECC_CORRECTED_STORM: Final = "ecc-corrected-storm"
REMAP_PENDING: Final = "remap-pending"
REMAP_FAILURE: Final = "remap-failure"
FABRIC: Final = "fabric"
GPU_LOST: Final = "gpu-lost"
GONE: Final = "gone"
WEDGED: Final = "wedged"
DEVICE_NODE: Final = "device-node"
MODE_HELD: Final = "mode-held"
MPS_LEFT: Final = "mps-left"

_ECC: Final = (
    Signal(
        name=ECC_UNCORRECTED_VOLATILE,
        key="ecc",
        value="uncorrected-volatile",
        meaning="memory errors that ECC could not correct, since the GPU was last reset",
        remedy=_RESET,
        state=HealthState.UNHEALTHY,
        evidence=Evidence.RESET,
        source=f"nvmlDeviceGetTotalEccErrors; {_MEMORY}",
        counted=Counted.VOLATILE,
    ),
    Signal(
        name=ECC_UNCORRECTED_AGGREGATE,
        key="ecc",
        value="uncorrected-aggregate",
        meaning="many memory errors that ECC could not correct, in the life of the board",
        remedy="run NVIDIA's field diagnostic on the board; clear the finding if it passes",
        state=HealthState.DEGRADED,
        evidence=Evidence.PERSON,
        source="nvmlDeviceGetTotalEccErrors; threshold: house rule, an eighth of the 512 spare rows of a board",
        counted=Counted.AGGREGATE,
        threshold=64,
    ),
    Signal(
        name=ECC_CORRECTED_VOLATILE,
        key="ecc",
        value="corrected-volatile",
        meaning="very many memory errors, all corrected, since the GPU was last reset",
        remedy="drain the GPU when convenient, reset it, and watch whether they come again",
        state=HealthState.DEGRADED,
        evidence=Evidence.RESET,
        source="nvmlDeviceGetTotalEccErrors; threshold: house rule, no figure is published",
        counted=Counted.VOLATILE,
        threshold=100_000,
    ),
    Signal(
        name=ECC_CORRECTED_STORM,
        key="ecc",
        value="corrected-storm",
        meaning="corrected memory errors come in a storm",
        remedy="drain the GPU when convenient and reset it",
        state=HealthState.DEGRADED,
        evidence=Evidence.RESET,
        source="NVML event 0x200 (single-bit ECC storm)",
        counted=Counted.EVENTS,
    ),
    Signal(
        name=REMAP_PENDING,
        key="remap",
        value="pending",
        meaning="a bad memory row waits for a reset to be replaced",
        remedy="drain the GPU when convenient and reset it",
        state=HealthState.DEGRADED,
        evidence=Evidence.RESET,
        source=f"nvmlDeviceGetRemappedRows, field 144; {_MEMORY}",
        counted=Counted.STATE,
    ),
    Signal(
        name=REMAP_FAILURE,
        key="remap",
        value="failure",
        meaning="a bad memory row could not be replaced",
        remedy="have the board replaced",
        state=HealthState.UNHEALTHY,
        evidence=Evidence.PERSON,
        source=f"nvmlDeviceGetRemappedRows, field 145; {_MEMORY}, RMA policy",
        counted=Counted.STATE,
    ),
)

_PRESENCE: Final = (
    Signal(
        name=GPU_LOST,
        key="gpu-lost",
        value="gpu-is-lost",
        meaning="NVML lists the GPU and cannot reach it",
        remedy="reset the GPU's bus or reboot the node; if it is lost again, have the board and its slot checked",
        state=HealthState.UNHEALTHY,
        evidence=Evidence.READING,
        source="NVML_ERROR_GPU_IS_LOST",
        counted=Counted.STATE,
    ),
    Signal(
        name=GONE,
        key="gone",
        value="not-reached-by-nvml",
        meaning="NVML does not list the GPU any more, or calls it lost",
        remedy="bring it back, or run `tesela forget` once it is gone for good",
        state=HealthState.GONE,
        evidence=Evidence.READING,
        source="nvmlDeviceGetCount_v2, nvmlDeviceGetUUID and NVML_ERROR_GPU_IS_LOST at each look",
        counted=Counted.STATE,
    ),
    Signal(
        name=WEDGED,
        key="wedged",
        value="nvml-call-hangs",
        meaning="a call into NVML does not return",
        remedy="look at the kernel log; if it does not return by itself, reboot the node",
        state=HealthState.UNHEALTHY,
        evidence=Evidence.READING,
        source="the driver's watchdog (docs/invariants.md, 8)",
        counted=Counted.STATE,
    ),
    Signal(
        name=DEVICE_NODE,
        key="device-node",
        value="missing",
        meaning="the device node of the GPU is missing",
        remedy="run `nvidia-modprobe -c MINOR` on the node, as with `-c 3` for /dev/nvidia3",
        state=HealthState.UNHEALTHY,
        evidence=Evidence.READING,
        source="/dev/nvidiaN",
        counted=Counted.STATE,
    ),
    Signal(
        name=FABRIC,
        key="fabric",
        value="not-ready",
        meaning="the NVLink fabric is not ready",
        remedy="see whether the fabric manager runs on the node",
        state=HealthState.DEGRADED,
        evidence=Evidence.READING,
        source="nvmlDeviceGetGpuFabricInfoV (state other than COMPLETED and NOT_SUPPORTED, or its status)",
        counted=Counted.STATE,
        reach=Reach.WHOLE,  # partitions do not use NVLink (MIG guide)
    ),
    Signal(
        name=MODE_HELD,
        key="mode-held",
        value="held",
        meaning="the MIG mode cannot be changed",
        remedy="end the process that holds it",
        state=HealthState.DEGRADED,
        evidence=Evidence.READING,
        source="nvmlDeviceSetMigMode: refused twice",
        counted=Counted.STATE,
    ),
    Signal(
        name=MPS_LEFT,
        key="mps",
        value="left-by-nvidia-driver",
        meaning="an MPS control daemon goes on that NVIDIA's DRA driver started",
        remedy="when its pod has ended, delete its Deployment mps-control-daemon-…, run `nvidia-smi -c DEFAULT` for "
        "the GPU, then `tesela health clear`",
        state=HealthState.DEGRADED,
        evidence=Evidence.PERSON,
        source="the checkpoint of NVIDIA's driver (docs/moving.md)",
        counted=Counted.EVENTS,
    ),
)

DEFAULT_TABLE: Final[Mapping[str, Signal]] = MappingProxyType(
    {signal.name: signal for signal in (*_list_xids(), *_ECC, *_list_actions(), *_PRESENCE)}
)
"""Every signal by name, before any policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What an operator changes in one row; None leaves it as it is."""

    signal: str
    state: HealthState | None = None
    effect: Effect | None = None
    threshold: int | None = None
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """The table that holds on this node."""

    table: Mapping[str, Signal] = field(default_factory=lambda: DEFAULT_TABLE)

    def find(self, signal: str) -> Signal | None:
        """The row of a signal; that of `xid-other`, under its own name, for an Xid without one."""
        return _find(self.table, signal)


DEFAULT_HEALTH_POLICY: Final = HealthPolicy()
NO_EFFECTS: Final[Mapping[HealthState, Effect]] = MappingProxyType({})


def apply_overrides(
    table: Mapping[str, Signal], overrides: Iterable[Override], effects: Mapping[HealthState, Effect] = NO_EFFECTS
) -> HealthPolicy:
    """The policy of `table` with the operator's changes: `effects` by state, then row by row.

    A row that condemns from now on and had no effect gets NoSchedule; one that no longer does gets none. NoExecute by
    state reaches no row that says nothing of the pods that run (`_SPARING`): those take an entry of their own.
    DocumentError names the override: an unknown signal, one named twice, a threshold of a state, a reading for an
    event, NoExecute for a healthy signal.
    """
    changed = {name: _change(row, effect=_find_effect(row, row.state, effects)) for name, row in table.items()}
    named: set[str] = set()
    for index, override in enumerate(overrides):
        path = f"health.signals[{index}]"
        row = _find(table, override.signal)
        if row is None:
            near = ", ".join(sorted(name for name in table if not _XID.fullmatch(name)))
            raise DocumentError(
                f"{path}.signal", f"there is no signal {override.signal!r}: give xid-N or one of {near}"
            )
        if override.signal in named:
            raise DocumentError(f"{path}.signal", f"{override.signal} is named twice: give it one entry")
        named.add(override.signal)
        changed[override.signal] = _override(row, override, effects, path)
    return HealthPolicy(table=MappingProxyType(changed))


_SPARING: Final = frozenset({WEDGED, DEVICE_NODE})
"""A call that hangs leaves nobody knowing how the GPU is, and marks a whole node; a missing device node keeps nobody
from a GPU that is open. Pods deleted for the one were well, as far as anybody knew, and for the other in any case."""


def _find_effect(row: Signal, state: HealthState, effects: Mapping[HealthState, Effect]) -> Effect | None:
    effect = effects.get(state)
    return None if effect is Effect.NO_EXECUTE and row.name in _SPARING else effect


def _override(row: Signal, override: Override, effects: Mapping[HealthState, Effect], path: str) -> Signal:
    state = override.state or row.state
    if override.evidence is Evidence.READING and row.counted is Counted.EVENTS:
        raise DocumentError(f"{path}.recovery", f"{row.name} is an event and reads nothing: give reset, boot or person")
    if override.threshold is not None and row.counted is Counted.STATE:
        raise DocumentError(f"{path}.threshold", f"{row.name} is a state and has no threshold: remove it")
    if state is not HealthState.HEALTHY:
        usual = Effect.NO_SCHEDULE if row.effect is Effect.NONE else row.effect
        effect = override.effect or _find_effect(row, state, effects) or usual
    elif override.effect in {None, Effect.NONE}:
        effect = Effect.NONE
    else:
        raise DocumentError(f"{path}.effect", f"{row.name} is healthy and taints nothing: give it another state")
    return replace(
        _change(row, effect=effect),
        state=state,
        threshold=override.threshold or row.threshold,
        evidence=override.evidence or row.evidence,
        source=row.source + _BY_POLICY,
    )


def _change(row: Signal, *, effect: Effect | None) -> Signal:
    return row if effect in {None, row.effect} else replace(row, effect=effect, source=row.source + _BY_POLICY)


_BY_POLICY: Final = "; changed by the policy file"


def _find(table: Mapping[str, Signal], signal: str) -> Signal | None:
    row = table.get(signal)
    match = _XID.fullmatch(signal)
    if row is not None or match is None or XID_OTHER not in table:
        return row
    return replace(table[XID_OTHER], name=signal, value=match[1])
