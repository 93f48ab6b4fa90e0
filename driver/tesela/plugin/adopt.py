"""Take a node over from NVIDIA's driver: its checkpoint becomes records of ours, then it is set aside.

At a start, before recovery and before the kubelet's calls: whatever the kubelet unprepares later was then adopted.
Records come first, each synced, and the checkpoint goes last, so that a crash in between begins again where it was; a
claim that has a record is done. `core/adoption.py` decides. NVIDIA's driver must have ended: two would give one GPU
twice. A damaged checkpoint stays where it is, and nothing is adopted: what lives is then fenced as others' partitions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tesela.core.adoption import (
    Adopt,
    AdoptedClaim,
    Adoption,
    AdoptionReport,
    Fate,
    Leave,
    TheirPartitions,
    list_devices,
    list_gpus,
)
from tesela.core.checkpoint import TheirClaim
from tesela.core.errors import NvmlError, StartError, StateError, TryAgain
from tesela.core.health.observations import DaemonLeft
from tesela.core.model import ClaimRef, LivePartition
from tesela.core.sweep import is_claim_uid
from tesela.edge.kubelet.listener import is_served
from tesela.edge.store.checkpoint import CheckpointFile
from tesela.edge.telemetry.work import CLAIM_UID
from tesela.plugin.adopt_look import AdoptionLook, Surroundings
from tesela.plugin.deadline import Deadline
from tesela.plugin.node import Node
from tesela.plugin.rebuild import list_holders
from tesela.plugin.sweep_look import read_time_slice

log = logging.getLogger(__name__)

_CLAIM_TIMEOUT_S: Final = 60.0
_HAS_RECORD: Final = "it has a record already"


def look_around(
    node: Node,
    *,
    list_names: Callable[[], tuple[ClaimRef, ...]] = lambda: (),
    partitions: TheirPartitions = TheirPartitions.AUTO,
) -> Surroundings:
    """Whom the node program asks about claims of NVIDIA's driver."""
    return Surroundings(
        pool=node.pool,
        policy=node.policy,
        kube=node.kube,
        get_boot_id=node.host.get_boot_id,
        get_roster=lambda: node.lookout.roster,
        list_live=lambda gpu_uuid: _list_live(node, gpu_uuid),
        read_time_slice=lambda gpu_uuid: read_time_slice(node, gpu_uuid),
        list_names=list_names,
        list_records=lambda: list_holders(node)[0],
        partitions=partitions,
    )


def _list_live(node: Node, gpu_uuid: str) -> tuple[LivePartition, ...]:
    known = node.lookout.roster.find(gpu_uuid)
    if known is None or not known.present:
        return ()
    try:
        return node.list_live(known)
    except (NvmlError, TryAgain) as error:
        log.warning("GPU %s does not tell what lives on it; its unprepares compare again: %s", gpu_uuid, error)
        return ()


class Adopter:
    """Adopts what NVIDIA's driver left on the node."""

    def __init__(
        self, node: Node, file: CheckpointFile, around: Surroundings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._node = node
        self._file = file
        self._around = around
        self._clock = clock

    def adopt(self) -> AdoptionReport | None:
        """Adopt all of it; None where there is nothing, or nothing that can be read.

        StartError where NVIDIA's driver serves this node. Another TeselaError where it cannot be done now: the start
        ends with it and the next one goes on, since a claim that is unprepared meanwhile would leave its partition.
        """
        if not self._file.path.exists():
            return None
        if is_served(self._file.socket):
            raise StartError(
                f"NVIDIA's driver serves {self._file.socket}: remove its DaemonSet from this node, then start this one"
            )
        with self._file.hold():
            try:
                checkpoint = self._file.read()
            except StateError as error:
                self._tell_damage(error)
                return None
            if checkpoint is None:
                return None
            look = AdoptionLook(self._around, checkpoint)
            claims = tuple(self._adopt_one(look, claim) for claim in checkpoint.claims)
            aside = self._file.set_aside("before-boot" if look.is_other_boot else "adopted")
        report = AdoptionReport(at_s=int(self._clock()), kept_as=str(aside or ""), claims=claims)
        self._tell(report)
        return report

    def _adopt_one(self, look: AdoptionLook, claim: TheirClaim) -> AdoptedClaim:
        node, ref, deadline = self._node, look.name(claim), Deadline.after(_CLAIM_TIMEOUT_S)
        if not claim.devices or look.is_other_boot or not is_claim_uid(claim.uid):
            return describe(claim, ref, look.plan(claim))
        with node.hold_claim(ref, deadline) as lock:
            if node.records.path(ref.uid).exists():
                done = (_HAS_RECORD,)
                return AdoptedClaim(claim=ref, devices=list_devices(claim), fate=Fate.ADOPTED, remarks=done)
            known = [uuid for uuid in list_gpus([claim]) if node.lookout.roster.find(uuid) is not None]
            with node.hold_gpus(known, deadline):
                plan = look.plan(claim)
                match plan:
                    case Adopt():
                        if plan.mps_gpus:
                            node.health.observe(*(DaemonLeft(gpu_uuid=uuid) for uuid in plan.mps_gpus))
                        node.records.write(plan.record)
                    case Leave():
                        lock.discard()
        return describe(claim, ref, plan)

    def _tell_damage(self, error: StateError) -> None:
        sentence = (
            f"{error}; no claim of NVIDIA's driver is adopted: their partitions stay, fenced, as `tesela sweep` shows; "
            "end those pods, then remove the file"
        )
        log.error("%s", sentence)
        self._node.announcer.announce_adopted(sentence, complete=False)

    def _tell(self, report: AdoptionReport) -> None:
        for one in report.claims:
            level = logging.INFO if one.fate is Fate.ADOPTED and not one.remarks else logging.WARNING
            about = {CLAIM_UID: one.claim.uid}
            log.log(level, "claim %s: %s%s", one.claim, one.fate, "".join(f"; {r}" for r in one.remarks), extra=about)
        adopted = sum(one.fate is Fate.ADOPTED for one in report.claims)
        left = len(report.claims) - adopted
        sentence = (
            f"this node is taken over from NVIDIA's driver: {adopted} of its claims are adopted and {left} are left; "
            f"its checkpoint is kept as {report.kept_as}, `tesela adoption` shows them"
        )
        log.info("%s", sentence)
        if report.claims:
            self._node.announcer.announce_adopted(sentence, complete=not left)
        try:
            self._file.write_report(report)
        except (StateError, TryAgain) as error:
            log.warning("the report of what was adopted is not written: %s", error)


def preview(around: Surroundings, file: CheckpointFile, *, at_s: int) -> AdoptionReport | None:
    """What an adoption would do now; writes nothing. None without a checkpoint.

    StateError where it is damaged, TryAgain where the API does not tell what matters.
    """
    checkpoint = file.read()
    if checkpoint is None:
        return None
    look = AdoptionLook(around, checkpoint)
    claims = tuple(describe(claim, look.name(claim), look.plan(claim)) for claim in checkpoint.claims)
    return AdoptionReport(at_s=at_s, kept_as="", claims=claims)


def describe(claim: TheirClaim, ref: ClaimRef, plan: Adoption) -> AdoptedClaim:
    """One line of the report."""
    match plan:
        case Adopt():
            return AdoptedClaim(claim=ref, devices=list_devices(claim), fate=Fate.ADOPTED, remarks=plan.remarks)
        case Leave():
            return AdoptedClaim(claim=ref, devices=list_devices(claim), fate=Fate.LEFT, remarks=(plan.reason,))
