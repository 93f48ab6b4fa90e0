"""Sweep the node at the start and every five minutes: compare, repair what is ours, report the rest.

`core/sweep.py` decides what does not fit and what may be done about it; the repairs are those of a start and of an
unprepare, claim by claim, each under its claim's lock and its GPUs', each with a fresh look. A claim that somebody has
in hand is left to him. The report is kept in memory and in sweep.json, which nobody reads to decide anything: it is for
`tesela sweep` and for a bundle.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tesela.core.errors import ApiError, StateError, TeselaError, TryAgain
from tesela.core.record import ClaimRecord, ClaimState
from tesela.core.sweep import (
    ApplyTimeSlice,
    Found,
    GiveBack,
    Mismatch,
    Outcome,
    RebuildRecord,
    RecoverClaim,
    RemoveFiles,
    Repair,
    Sight,
    SweepReport,
    plan_sweep,
)
from tesela.edge.nvml import codes
from tesela.edge.store.sweep import SweepStore
from tesela.edge.telemetry.work import Verb, working_on
from tesela.plugin.deadline import Deadline
from tesela.plugin.loop import Loop, PausablePart
from tesela.plugin.node import Node
from tesela.plugin.recover import InHand, Recovery, attempt_recovery, hold_claim, rebuild, remove_orphan
from tesela.plugin.sweep_look import GoneClaims, is_idle, is_in_api, list_claim_holders, look, read_time_slice
from tesela.plugin.unprepare import unprepare_locked

log = logging.getLogger(__name__)

_RECOVERY_WAIT_S: Final = 60.0
_JOIN_S: Final = 0.5
_CLAIM_TIMEOUT_S: Final = 30.0
_ENDING: Final = "left for later: the driver ends, or NVML is being released"
_LATE: Final = "left for the next sweep: the repairs before it took their time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTimes:
    """In seconds: between two sweeps, and how long one asks for claims and begins repairs.

    A repair may wait a minute for a lock that somebody else has, so what is left then is left for the next sweep.
    """

    period_s: float = 300.0
    asking_s: float = 120.0
    repairs_s: float = 300.0


class Sweeper(PausablePart):
    """The thread that sweeps; the first sweep comes once the claims are recovered.

    `on_change` is called after a sweep that repaired something, and must not block.
    `clock` (Unix seconds) dates the reports; `gone` remembers which claims the API does not know.
    """

    def __init__(
        self,
        node: Node,
        recovery: Recovery,
        store: SweepStore,
        *,
        on_change: Callable[[str], None] = lambda _reason: None,
        times: SweepTimes = SweepTimes(),
        clock: Callable[[], float] = time.time,
        gone: GoneClaims | None = None,
    ) -> None:
        # Nothing insists on a partition in use here: the next sweep tries again, and others wait for the locks.
        self._node = replace(node, in_use_retry_s=0.0)
        self._recovery = recovery
        self._store = store
        self._on_change = on_change
        self._times = times
        self._clock = clock
        self._gone = gone or GoneClaims()
        self._report: SweepReport | None = None
        self._loop = Loop("sweep", self._turn)

    @property
    def report(self) -> SweepReport | None:
        """What the last sweep found; None before the first one."""
        return self._report

    def sweep(self) -> SweepReport:
        """Look, compare, repair; the report, which is told and written too."""
        began_s, began = self._clock(), time.monotonic()
        sight = look(self._node, self._gone, asking_s=self._times.asking_s)
        found = tuple(self._repair_all(sight))
        self._free_modes()
        report = SweepReport(
            began_s=int(began_s), took_s=round(time.monotonic() - began, 3), found=found, unknown=sight.unknown
        )
        _log_news(self._report, report)
        self._report = report
        if any(one.outcome is Outcome.REPAIRED for one in found):
            self._on_change("a sweep repaired something")
        with _saying("the report of the sweep is not written"):
            self._store.write_report(report)
        return report

    def _turn(self) -> float:
        if self._report is None:
            self._wait_for_recovery()
        with _saying("the sweep is repeated"):
            self.sweep()
        return self._times.period_s

    def _wait_for_recovery(self) -> None:
        """For some time: what takes longer waits for a GPU, and the claims under recovery are in hand."""
        deadline = Deadline.after(_RECOVERY_WAIT_S)
        while deadline.left_s and not self._loop.must_end and not self._recovery.join(_JOIN_S):
            pass

    def _repair_all(self, sight: Sight) -> Iterator[Found]:
        """Each repair once, however many mismatches ask for it. What is in somebody's hands is no mismatch."""
        seen = {record.claim.uid: record for record in sight.records}
        done: dict[Repair, Found | None] = {}
        deadline = Deadline.after(self._times.repairs_s)
        for one in plan_sweep(sight):
            if one.repair is None:
                yield Found(mismatch=one.mismatch, outcome=Outcome.REPORTED)
                continue
            if self._loop.must_end or not deadline.left_s:
                detail = _ENDING if self._loop.must_end else _LATE
                yield Found(mismatch=one.mismatch, outcome=Outcome.FAILED, detail=detail)
                continue
            if one.repair not in done:
                done[one.repair] = self._repair(one.mismatch, one.repair, seen.get(one.repair.claim_uid))
            if (found := done[one.repair]) is not None:
                yield replace(found, mismatch=one.mismatch)

    def _repair(self, mismatch: Mismatch, repair: Repair, seen: ClaimRecord | None) -> Found | None:
        try:
            if seen is not None and self._node.records.read(repair.claim_uid) != seen:
                return None
            _perform(self._node, repair)
        except InHand:
            return None
        except TeselaError as error:
            return Found(mismatch=mismatch, outcome=Outcome.FAILED, detail=str(error))
        return Found(mismatch=mismatch, outcome=Outcome.REPAIRED)

    def _free_modes(self) -> None:
        """A GPU whose mode was held and that is in the mode wanted, or idle, takes claims of both shapes again."""
        roster = self._node.lookout.roster
        for gpu_uuid, wants_mig in self._node.mode_holds.list_held().items():
            known = roster.find(gpu_uuid)
            if known is None or not known.present:
                continue  # it cannot be asked, and a reset or `tesela forget` ends it
            with _saying(f"whether the MIG mode of GPU {gpu_uuid} is held cannot be told"):
                enabled = self._node.nvml.get_mig_mode(gpu_uuid).current == codes.MIG_ENABLED
                if enabled == wants_mig or is_idle(self._node, gpu_uuid):
                    self._node.mode_holds.free(gpu_uuid)


def _perform(node: Node, repair: Repair) -> None:
    """Do it. InHand where the claim is in somebody's hands; another TeselaError says why it cannot be done now."""
    uid = repair.claim_uid
    match repair:
        case RecoverClaim():
            attempt_recovery(node, uid)
        case RebuildRecord():
            damaged = next((one for one in node.records.list().unreadable if one.uid == uid), None)
            if damaged is None:
                raise InHand("its record is whole by now")
            if rebuild(node, damaged) is None:
                hope = "it is left to that" if damaged.foreign else "the kubelet's next call for the claim rebuilds it"
                raise StateError(f"{damaged.problem}; {hope}")
            attempt_recovery(node, uid)
        case RemoveFiles():
            if remove_orphan(node, uid) is not None:
                attempt_recovery(node, uid)
        case GiveBack():
            with hold_claim(node, uid) as lock:
                _give_back(node, _read(node, uid))
                lock.discard()
        case ApplyTimeSlice():
            with hold_claim(node, uid):
                _apply_time_slices(node, _read(node, uid))


def _read(node: Node, claim_uid: str) -> ClaimRecord:
    record = node.records.read(claim_uid)
    if record is None:
        raise InHand("it has no record any more")
    return record


def _give_back(node: Node, record: ClaimRecord) -> None:
    """Unprepare, once it is seen again, under the claim's lock, that the API does not know it and nobody uses it.

    With the lock held no prepare of this claim can answer from its record meanwhile.
    """
    try:
        known = is_in_api(node, record.claim)
    except ApiError as error:
        raise TryAgain(f"the API does not say again that it does not know the claim: {error}") from error
    if known:
        raise InHand("the API knows it again")
    holders = list_claim_holders(node, record)
    if holders != ():
        raise TryAgain(f"its devices are used by {', '.join(holders or ('nobody knows whom',))}")
    with working_on(Verb.UNPREPARE, record.claim), node.telemetry.operation():
        log.warning("claim %s: the API does not know it any more and nobody uses its devices; given back", record.claim)
        unprepare_locked(node, record.claim, record, Deadline.after(_CLAIM_TIMEOUT_S))


def _apply_time_slices(node: Node, record: ClaimRecord) -> None:
    if record.state is not ClaimState.PREPARED:
        raise InHand("it is not prepared any more")
    with node.hold_gpus(record.gpu_uuids, Deadline.after(_CLAIM_TIMEOUT_S)):
        for device in record.devices:
            if device.time_slice is None or read_time_slice(node, device.gpu_uuid) in {None, device.time_slice}:
                continue
            node.nvidia_smi.set_time_slice(device.gpu_uuid, device.time_slice)
            if read_time_slice(node, device.gpu_uuid) != device.time_slice:
                raise TryAgain(f"nvidia-smi does not show the time slice {device.time_slice} after setting it")


def _log_news(before: SweepReport | None, report: SweepReport) -> None:
    """What the sweep before did not find, each once; a repair each time."""
    known = {one.mismatch for one in before.found} if before is not None else set()
    said = set(before.unknown) if before is not None else set()
    for one in report.found:
        if one.outcome is Outcome.REPAIRED:
            log.warning("repaired: %s", one.mismatch.message)
        elif one.mismatch not in known:
            log.warning("%s%s", one.mismatch.message, f": {one.detail}" if one.detail else "")
    for sentence in report.unknown:
        if sentence not in said:
            log.warning("%s", sentence)


@contextlib.contextmanager
def _saying(what: str) -> Iterator[None]:
    try:
        yield
    except TeselaError as error:
        log.warning("%s: %s", what, error)
