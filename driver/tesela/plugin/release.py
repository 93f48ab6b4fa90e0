"""Give back what a record says is ours, and nothing else.

`core/release.py` decides; here is the order: the record says *unpreparing* before the first instance goes, one GPU's
lock is held at a time. A partition that is in use is tried again within bounds, between which its GPU's lock is free
for other claims, and then its holder is named.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from tesela.core.errors import NvmlError, NvmlTimeout, StateError, TryAgain
from tesela.core.model import ClaimRef, GpuInstance, LivePartition
from tesela.core.record import ClaimRecord, ClaimState, Grant, RecordedDevice
from tesela.core.release import Destroy, Foreign, Nothing, is_stale, plan_release, render_remnant, render_unpreparing
from tesela.core.roster import KnownGpu
from tesela.edge.nvml import codes
from tesela.edge.telemetry.port import Phase
from tesela.plugin.deadline import Deadline
from tesela.plugin.holders import describe_partition_holders
from tesela.plugin.late_calls import check_no_call
from tesela.plugin.node import Node
from tesela.plugin.partition import InstanceStays

log = logging.getLogger(__name__)

_PAUSE_S = 0.25


class PartitionInUse(TryAgain):
    """NVML does not destroy a partition of a claim now; `cause` is what it said."""

    def __init__(self, device: RecordedDevice, live: LivePartition, cause: NvmlError | InstanceStays) -> None:
        super().__init__(f"{live.mig_uuid or 'its partition'} is in use: {cause}")
        self.device = device
        self.live = live
        self.cause = cause


def give_back(node: Node, record: ClaimRecord, deadline: Deadline) -> None:
    """Give all devices back, insisting for a short while: a process that just ended may keep its handle for some time.

    What can be given back is, though another device cannot. TryAgain then, for the first of those: it names the process
    that holds a partition. The caller holds the claim's lock and no GPU's.
    """
    insist = Deadline.after(min(node.in_use_retry_s, deadline.left_s))
    refusals: list[TryAgain] = []
    for gpu_uuid in record.gpu_uuids:
        try:
            _insist(node, record, gpu_uuid, insist, deadline)
        except PartitionInUse as busy:
            named = _name_holder(node, record.claim, busy, deadline)
            # The kubelet writes no Event about an unprepare that fails.
            node.announcer.announce_in_use(str(named), record.claim)
            named.__cause__ = busy  # raised later, and counted by its cause
            refusals.append(named)
        except TryAgain as refusal:
            refusals.append(refusal)
    if refusals:
        raise refusals[0]


def _insist(node: Node, record: ClaimRecord, gpu_uuid: str, insist: Deadline, deadline: Deadline) -> None:
    while True:
        with node.hold_gpus([gpu_uuid], deadline):
            busy = _release_what_is_free(node, record, gpu_uuid, deadline)
        if busy is None:
            return
        if insist.left_s <= _PAUSE_S:
            raise busy
        time.sleep(_PAUSE_S)


def _release_what_is_free(node: Node, record: ClaimRecord, gpu_uuid: str, deadline: Deadline) -> PartitionInUse | None:
    """The first device of the claim on this GPU that is in use."""
    first: PartitionInUse | None = None
    for device in record.devices_on(gpu_uuid):
        try:
            _release(node, record, device, deadline)
        except PartitionInUse as busy:
            first = first or busy
    return first


def mark_unpreparing(node: Node, record: ClaimRecord) -> ClaimRecord:
    """Write that a prepared claim is being given back, where that has effects; returns the record as it stands.

    Without that, an instance whose compute instance is destroyed already would be taken for somebody else's. A
    *preparing* record stays one: it covers its slots already.
    """
    if record.state is not ClaimState.PREPARED or not has_effects(record):
        return record
    marked = render_unpreparing(record)
    with node.telemetry.phase(Phase.RECORD):
        try:
            node.records.write(marked, synced=False)
        except (TryAgain, StateError) as error:
            _mark_without_space(node, record, error)
    return marked


def _mark_without_space(node: Node, record: ClaimRecord, cause: TryAgain | StateError) -> None:
    """A full disk must not keep anything from being given back. Where not even that is taken, `cause` is raised."""
    try:
        node.records.mark_unpreparing(record.claim.uid)
    except (TryAgain, StateError):
        raise cause from cause.__cause__
    log.warning("claim %s: it is given back all the same: %s", record.claim, cause)


def has_effects(record: ClaimRecord) -> bool:
    """Whether giving the claim back changes a GPU."""
    return any(
        device.time_slice is not None or any(partition.ours for partition in device.partitions)
        for device in record.devices
    )


def settle(node: Node, record: ClaimRecord) -> tuple[Grant, ...]:
    """Remove files and record of a claim whose devices were given back, but for what its containers may still open.

    The caller holds the claim's lock. Returns the grants that stay.
    """
    node.workload.remove(record.claim.uid)
    remnant = render_remnant(record, node.host.get_boot_id())
    if remnant is None:
        node.records.remove(record.claim.uid)
        return ()
    if remnant != record:
        node.records.write(remnant)
    return remnant.grants


def release_device(node: Node, record: ClaimRecord, device: RecordedDevice, deadline: Deadline) -> None:
    """Destroy our partitions of one device and undo its time slice. The caller holds the claim's and the GPU's lock.

    TryAgain where NVML refuses, naming the process that holds a partition; what has gone is done, so calling again goes
    on from there. It does not insist, since its caller holds the locks.
    """
    try:
        _release(node, record, device, deadline)
    except PartitionInUse as busy:
        raise _name_holder(node, record.claim, busy, deadline) from busy


def _release(node: Node, record: ClaimRecord, device: RecordedDevice, deadline: Deadline) -> None:
    known = node.lookout.roster.find(device.gpu_uuid)
    stale = is_stale(device, known, node.host.get_boot_id())
    if known is None or stale or not has_effects(replace(record, devices=(device,))):
        return
    try:
        if device.partitions:
            _check_no_call(node, record.claim, device, known)
            live = node.list_live(known)
            for partition in device.partitions:
                release = plan_release(record, device, partition, stale=stale, live=live)
                _perform(node, record.claim, device, release)
        if device.time_slice is not None:
            deadline.check(f"the time slice of GPU {device.gpu_uuid}")
            _reset_time_slice(node, record, device)
    except NvmlError as error:
        if error.code in codes.GPU_GONE and not _is_present(node, known):
            log.warning("claim %s: GPU %s is gone, and with it %s", record.claim, device.gpu_uuid, device.device)
            return
        raise TryAgain(
            f"claim {record.claim.namespace}/{record.claim.name}: device {device.device}: cannot be given back: "
            f"{error}; the kubelet tries again by itself"
        ) from error


def _check_no_call(node: Node, ref: ClaimRef, device: RecordedDevice, known: KnownGpu) -> None:
    """On a GPU that is gone a call makes nothing any more, whenever it returns."""
    try:
        check_no_call(node, device.gpu_uuid, f"claim {ref.namespace}/{ref.name}: device {device.device}")
    except NvmlTimeout:
        if _is_present(node, known):
            raise


def _reset_time_slice(node: Node, record: ClaimRecord, device: RecordedDevice) -> None:
    """Where the interval was never known to be applied, a host that cannot reset it must not wedge the claim."""
    try:
        node.nvidia_smi.set_time_slice(device.gpu_uuid, "Default")
    except TryAgain as error:
        if record.state is not ClaimState.PREPARING:
            raise
        log.warning("claim %s: device %s: time slice not reset: %s", record.claim, device.device, error)


def _is_present(node: Node, known: KnownGpu) -> bool:
    try:
        node.nvml.get_index(known.gpu.uuid)
    except NvmlError as error:
        if error.code in codes.GPU_GONE:
            return False
        raise
    return True


def _perform(node: Node, ref: ClaimRef, device: RecordedDevice, release: Destroy | Nothing | Foreign) -> None:
    match release:
        case Destroy(live=live):
            _destroy(node, device, live)
        case Nothing(reason=reason):
            log.info("claim %s: device %s: nothing to destroy: %s", ref, device.device, reason)
        case Foreign(live=live):
            log.warning(
                "claim %s: device %s: its partition is gone and %s of GPU %s stands in its place; it is left alone",
                ref,
                device.device,
                live.mig_uuid or f"GPU instance {live.gi_id}",
                live.gpu_uuid,
            )


def _destroy(node: Node, device: RecordedDevice, live: LivePartition) -> None:
    instance = GpuInstance(
        gpu_uuid=live.gpu_uuid, profile_id=live.profile_id, placement=live.placement, gi_id=live.gi_id
    )
    try:
        with node.telemetry.phase(Phase.DESTROY):
            node.partitions.destroy(instance)
    except NvmlError as error:
        if error.code != codes.IN_USE:
            raise
        raise PartitionInUse(device, live, error) from error
    except InstanceStays as error:
        raise PartitionInUse(device, live, error) from error


def _name_holder(node: Node, ref: ClaimRef, busy: PartitionInUse, deadline: Deadline) -> TryAgain:
    if isinstance(busy.cause, InstanceStays):
        cause = str(busy.cause)
    else:
        holder = describe_partition_holders(node.nvml, node.host, busy.live, deadline)
        cause = f"{busy.live.mig_uuid or 'its partition'} is in use by {holder}; end that process"
    return TryAgain(
        f"claim {ref.namespace}/{ref.name}: device {busy.device.device}: {cause}, the kubelet tries again by itself"
    )
