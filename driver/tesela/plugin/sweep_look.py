"""The look of a sweep: records, files, GPUs, time slices and the API's claims, as one `Sight`. Changes nothing.

It holds no lock, so what it sees may be under way; whoever acts on it looks again under the locks. GPUs are asked side
by side, and one that does not answer is left out: of it nothing is concluded. Time slices are asked for where a claim
set one, since each answer costs a process. The API is asked one GET per record, one after the other, and not at all
after the first answer that says nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from tesela.core.errors import ApiError, ApiNotFound, NvmlError, TryAgain
from tesela.core.model import ClaimRef, LivePartition
from tesela.core.record import ClaimRecord, RecordedDevice
from tesela.core.roster import KnownGpu
from tesela.core.sweep import ClaimSight, GpuSight, Sight
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.nvml import codes
from tesela.plugin.deadline import Deadline
from tesela.plugin.holders import Holders, list_gpu_holders, list_partition_holders
from tesela.plugin.inventory import LOOK_TIMEOUT_S
from tesela.plugin.node import Node
from tesela.plugin.side_by_side import run_side_by_side

log = logging.getLogger(__name__)

_HOLDERS_TIMEOUT_S = 10.0
_TOLD_OF_A_NAME = 200
"""A claim's name has up to 253 characters, and the text of an ApiError may be cut after 256."""


class GoneClaims:
    """Since when the API does not know a claim, by its UID. In memory: a new process begins anew, and waits longer.

    `clock` is monotonic, so that no clock that jumps makes a claim old.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def note_gone(self, claim_uid: str) -> float:
        """The API said that it does not know the claim; seconds since it said so first."""
        now_s = self._clock()
        return now_s - self._since_s.setdefault(claim_uid, now_s)

    def keep(self, claim_uids: Iterable[str]) -> None:
        """Forget all others: the API knows them, or they have no record any more."""
        kept = set(claim_uids)
        self._since_s = {uid: since_s for uid, since_s in self._since_s.items() if uid in kept}


def look(node: Node, gone: GoneClaims, *, asking_s: float) -> Sight:
    """Everything that a sweep compares.

    The API, and who uses the devices of claims that it does not know, are asked for `asking_s` at most, since slow
    answers add up. Of the claims after that nothing is known.
    """
    before = node.records.list().records
    roster, boot_id = node.lookout.roster, node.host.get_boot_id()
    files, complete = frozenset(node.workload.list_claims()), node.workload.list_complete_claims(before)
    present = [known for known in roster.gpus if known.present]
    looks = {known.gpu.uuid: partial(_look_at, node, known, _wants_time_slice(known, before)) for known in present}
    seen = run_side_by_side(looks, timeout_s=LOOK_TIMEOUT_S, name="sweep")
    after = node.records.list()
    records = {one.claim.uid: one for one in (*before, *after.records)}
    gpus = {uuid: one for uuid, one in seen.items() if one is not None}
    claims, unknown = _ask_api(node, after.records, gone, Deadline.after(asking_s))
    return Sight(
        boot_id=boot_id,
        roster=roster,
        policy=node.policy,
        records=tuple(records[uid] for uid in sorted(records)),
        steady=frozenset(one.claim.uid for one in before if one in after.records),
        unreadable=tuple(one.uid for one in after.unreadable),
        files=files,
        complete=complete,
        gpus=gpus,
        claims=claims,
        unknown=(*_tell_unknown(present, gpus), *unknown),
    )


def _wants_time_slice(known: KnownGpu, records: Iterable[ClaimRecord]) -> bool:
    return any(one.time_slice is not None for record in records for one in record.devices_on(known.gpu.uuid))


def _look_at(node: Node, known: KnownGpu, time_slice: bool) -> GpuSight | None:
    """None where the GPU does not answer."""
    uuid = known.gpu.uuid
    try:
        mode = None if known.gpu.mig_enabled is None else node.nvml.get_mig_mode(uuid)
        live = node.list_live(known) if mode is None or mode.current == codes.MIG_ENABLED else ()
    except (NvmlError, TryAgain) as error:
        log.info("GPU %s does not answer a sweep: %s", uuid, error)
        return None
    return GpuSight(
        live=live,
        mig_enabled=None if mode is None else mode.current == codes.MIG_ENABLED,
        mig_pending=None if mode is None else mode.pending == codes.MIG_ENABLED,
        time_slice=read_time_slice(node, uuid) if time_slice else "",
    )


def read_time_slice(node: Node, gpu_uuid: str) -> str | None:
    """The interval in force; None where it cannot be read."""
    try:
        return node.nvidia_smi.get_time_slice(gpu_uuid)
    except TryAgain as error:
        log.info("the time slice of GPU %s is unknown: %s", gpu_uuid, error)
        return None


def _tell_unknown(present: Iterable[KnownGpu], gpus: dict[str, GpuSight]) -> Iterable[str]:
    for known in present:
        seen = gpus.get(known.gpu.uuid)
        if seen is None:
            yield f"{known.name} ({known.gpu.uuid}) does not answer: nothing on it was compared"
        elif seen.time_slice is None:
            yield f"the time slice of {known.name} ({known.gpu.uuid}) cannot be read with nvidia-smi"


def _ask_api(
    node: Node, records: Iterable[ClaimRecord], gone: GoneClaims, deadline: Deadline
) -> tuple[dict[str, ClaimSight], tuple[str, ...]]:
    claims: dict[str, ClaimSight] = {}
    unknown: tuple[str, ...] = ()
    asked = [record for record in records if record.claim.name]  # of an adopted one it may not be known yet
    for record in asked:
        if not deadline.left_s:
            unknown = ("there was no time to ask for all claims: the API, or who uses the devices of one, is slow",)
            break
        try:
            known = is_in_api(node, record.claim)
        except ApiError as error:
            unknown = (f"the API does not tell of all claims: {error}",)
            break
        if known:
            claims[record.claim.uid] = ClaimSight()
        else:
            gone_for_s = gone.note_gone(record.claim.uid)
            claims[record.claim.uid] = ClaimSight(gone_for_s=gone_for_s, holders=list_claim_holders(node, record))
    gone.keep(one.claim.uid for one in asked if claims.get(one.claim.uid) != ClaimSight())
    return claims, unknown


def is_in_api(node: Node, ref: ClaimRef) -> bool:
    """Whether the API knows this very claim, by its UID. ApiError where it does not tell.

    A 404 tells only where it is about this claim by name: so does one of an API server that does not serve
    resource.k8s.io/v1 any more, or of something before it, about every claim there is.
    """
    try:
        obj = node.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
    except ApiNotFound as error:
        if error.reason == "NotFound" and f'"{ref.name[:_TOLD_OF_A_NAME]}' in error.message:
            return False
        raise ApiError(error.status, error.reason, error.message) from error
    return bool(obj["metadata"]["uid"] == ref.uid)


def list_claim_holders(node: Node, record: ClaimRecord) -> tuple[str, ...] | None:
    """The processes on the devices of a claim, None where that cannot be told of all of them.

    It cannot of a claim that lost partitions, while its containers may still open the ids of those (invariant 9).
    """
    if any(grant.boot_id == node.host.get_boot_id() for grant in record.grants):
        return None
    deadline = Deadline.after(_HOLDERS_TIMEOUT_S)
    found = [holders for device in record.devices for holders in _list_holders(node, device, deadline)]
    names = sorted({name for holders in found for name in holders.names})
    return tuple(names) if names or all(holders.complete for holders in found) else None


def _list_holders(node: Node, device: RecordedDevice, deadline: Deadline) -> Iterable[Holders]:
    known = node.lookout.roster.find(device.gpu_uuid)
    if known is None or not known.present:
        return  # nobody uses what is gone, and nothing of it could be asked
    if not device.partitions:
        yield list_gpu_holders(node.nvml, node.host, device.gpu_uuid, deadline)
        return
    try:
        live = {one.mig_uuid: one for one in node.list_live(known)}
    except (NvmlError, TryAgain):
        yield Holders(names=(), complete=False)
        return
    for partition in device.partitions:
        one: LivePartition | None = live.get(partition.mig_uuid) if partition.mig_uuid is not None else None
        if one is not None:
            yield list_partition_holders(node.nvml, node.host, one, deadline)


def is_idle(node: Node, gpu_uuid: str) -> bool:
    """Whether it is sure that nobody uses a GPU."""
    holders = list_gpu_holders(node.nvml, node.host, gpu_uuid, Deadline.after(_HOLDERS_TIMEOUT_S))
    return holders.complete and not holders.names
