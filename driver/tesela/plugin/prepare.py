"""Prepare one claim: the transaction, in the one order that loses and leaks nothing.

The claim's lock; the claim from the API with no GPU lock held; the locks of its GPUs in ascending UUID order; the
record again; the plan; where it has effects, a *preparing* record; the effects; CDI and metadata files; the *prepared*
record; the answer. A crash anywhere leaves a record that `recover` or the next call can undo.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tesela.core.claim import AllocatedClaim
from tesela.core.config import DeviceConfig, resolve_config
from tesela.core.errors import ApiNotFound, ClaimRefused, NvmlError, TryAgain
from tesela.core.model import ClaimRef, PreparedDevice
from tesela.core.prepare import GpuView, plan_prepare
from tesela.core.record import ClaimRecord, ClaimState, Grant
from tesela.core.release import is_stale, render_lost
from tesela.core.wanted import Wanted, plan_wanted
from tesela.edge.documents.claim import decode_claim
from tesela.edge.documents.config import decode_configs
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.kube.retry import with_retries
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import together
from tesela.edge.telemetry.port import Phase
from tesela.plugin.deadline import Deadline
from tesela.plugin.node import Node
from tesela.plugin.perform import perform
from tesela.plugin.rebuild import list_holders, read_or_rebuild
from tesela.plugin.recover import renew
from tesela.plugin.release import release_device, settle
from tesela.plugin.sentence import naming

log = logging.getLogger(__name__)

_FABRIC_PAUSE_S = 0.5
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A claim as allocated, with what each of its results wants."""

    claim: AllocatedClaim
    wanted: tuple[Wanted, ...]
    configs: tuple[DeviceConfig, ...]


def prepare_claim(node: Node, ref: ClaimRef, deadline: Deadline) -> tuple[PreparedDevice, ...]:
    """The claim's devices, prepared and on record. ClaimRefused, TryAgain or StateError carry a sentence."""
    node = node.within(deadline)
    with node.hold_claim(ref, deadline) as lock:
        try:
            return _prepare_in_rounds(node, ref, deadline)
        finally:
            if not node.records.path(ref.uid).exists():
                lock.discard()  # nothing is left that it guards


def _prepare_in_rounds(node: Node, ref: ClaimRef, deadline: Deadline) -> tuple[PreparedDevice, ...]:
    """Another round where one found that less lives than the records say, and noted it."""
    for _ in range(_ROUNDS):
        with node.telemetry.phase(Phase.READ_RECORD):
            record = read_or_rebuild(node, ref, deadline)
        request = None if record is not None and _may_answer(node, record) else _get_request(node, ref, deadline)
        with naming(ref, _list_devices(record, request)):
            if request is not None:
                with node.telemetry.phase(Phase.FABRIC):
                    _wait_for_fabric(node, request, deadline)
            answer = _prepare_locked(node, ref, record, request, deadline)
        if answer is not None:
            return answer
    raise TryAgain(
        f"claim {ref.namespace}/{ref.name}: partitions vanish while it is prepared: look at its GPU, the kubelet tries "
        "again by itself"
    )


def _list_devices(record: ClaimRecord | None, request: _Request | None) -> Iterator[str]:
    if request is not None:
        return (one.result.device for one in request.wanted)
    return (device.device for device in record.devices) if record is not None else iter(())


def _may_answer(node: Node, record: ClaimRecord) -> bool:
    """Whether the record alone may answer: prepared in this boot and generation. What lives is looked at later."""
    boot_id, roster = node.host.get_boot_id(), node.lookout.roster
    return record.state is ClaimState.PREPARED and not any(
        is_stale(device, roster.find(device.gpu_uuid), boot_id) for device in record.devices
    )


def _was_interrupted(node: Node, record: ClaimRecord) -> bool:
    """Whether it is of whole GPUs whose driver was loaded anew: made anew, nobody would know of it any more."""
    boot_id = node.host.get_boot_id()
    same_boot = all(device.boot_id == boot_id and not device.partitions for device in record.devices)
    return same_boot and record.state is ClaimState.PREPARED and not _may_answer(node, record)


def _get_request(node: Node, ref: ClaimRef, deadline: Deadline) -> _Request:
    """Read the claim from the API; its UID must be the kubelet's. Every config addressed to us must decode."""
    try:
        with node.telemetry.phase(Phase.READ_CLAIM):
            obj = with_retries(
                lambda: node.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace),
                threading.Event(),  # nothing ends these waits early: a stop waits longer than `api_retry_s` for them
                min(node.api_retry_s, deadline.left_s),
            )
    except ApiNotFound as error:
        raise ClaimRefused(f"claim {ref.namespace}/{ref.name} is not in the API any more; delete its pod") from error
    uid = obj.get("metadata", {}).get("uid")
    if uid != ref.uid:
        raise ClaimRefused(
            f"claim {ref.namespace}/{ref.name} has UID {uid}, and the kubelet asked for {ref.uid}: it was deleted and "
            "made again; delete the pod so that it uses the new one"
        )
    claim = decode_claim(obj)
    with naming(ref, (result.device for result in claim.results)):
        configs = decode_configs(claim)
        wanted = plan_wanted(claim, node.lookout.roster, pool=node.pool)
        resolved = tuple(resolve_config(claim, configs, one.result, whole=one.profile is None) for one in wanted)
    return _Request(claim=claim, wanted=wanted, configs=resolved)


def _prepare_locked(
    node: Node, ref: ClaimRef, record: ClaimRecord | None, request: _Request | None, deadline: Deadline
) -> tuple[PreparedDevice, ...] | None:
    """None: less lives than the records say. The claim's own record is *preparing* then."""
    gpu_uuids = set(record.gpu_uuids if record else ()) | {one.gpu_uuid for one in (request.wanted if request else ())}
    with node.telemetry.phase(Phase.RECOVERY):
        node.gate.wait(gpu_uuids, deadline)
        node.workload.wait(deadline)
    with node.hold_gpus(gpu_uuids, deadline):
        record = node.records.read(ref.uid)
        if record is not None and not record.claim.name:  # an adopted one, of which nobody told the name before
            record = replace(record, claim=ref)
            node.records.write(record)
        if record is not None and _was_interrupted(node, record):
            record = renew(node, record)
        if record is not None and _may_answer(node, record):
            if node.lives(record):
                with node.telemetry.phase(Phase.FILES):
                    return node.workload.write(record, deadline)
            log.warning("claim %s: a partition of it is gone; it is made again", ref)
            record = render_lost(record)
            node.records.write(record)
        if request is None:
            return None
        grants = _undo(node, record, deadline) if record is not None else ()
        deadline.check("making its devices")
        held = frozenset(device.device for device in record.devices) if record is not None else frozenset()
        return _prepare_anew(node, request, grants, held, deadline)


def _prepare_anew(
    node: Node, request: _Request, grants: tuple[Grant, ...], held: frozenset[str], deadline: Deadline
) -> tuple[PreparedDevice, ...] | None:
    ref = request.claim.ref
    try:
        with node.telemetry.phase(Phase.LOOK):
            views = {one.gpu_uuid: _look(node, one.gpu_uuid, request.wanted, deadline) for one in request.wanted}
    except NvmlError as error:
        raise TryAgain(
            f"claim {ref.namespace}/{ref.name}: its GPU does not answer: {error}; the kubelet tries again by itself"
        ) from error
    emptied = [view for view in views.values() if node.lookout.note_if_emptied(view.known, view.instances)]
    if emptied:
        return None  # a reset that nobody noticed: what is made must be of the generation after it
    with node.telemetry.phase(Phase.PLAN):
        records, damaged = list_holders(node)
        plan = plan_prepare(request.claim, request.wanted, request.configs, views, records, damaged, held)
    return perform(node, replace(plan, grants=grants), records, deadline)


def _look(node: Node, gpu_uuid: str, wanted: Sequence[Wanted], deadline: Deadline) -> GpuView:
    """The GPU as it is now, under its lock. Only the slots that the claim wants are described (each costs calls)."""
    known = node.lookout.roster.find(gpu_uuid)
    assert known is not None, "plan_wanted resolves to GPUs of the roster"
    slots = {
        (one.profile.profile_id, one.placement)
        for one in wanted
        if one.gpu_uuid == gpu_uuid and one.profile is not None
    }
    rule = node.policy.find_rule(known)

    def look() -> GpuView:
        mig_enabled = _get_mig_enabled(node, gpu_uuid) if known.gpu.mig_enabled is not None else None
        instances = node.list_instances(known) if mig_enabled else ()
        deadline.check(f"GPU {gpu_uuid}, which answers slowly")
        wanted_ones = (one for one in instances if (one.profile_id, one.placement) in slots)
        described = tuple(node.partitions.describe(one) for one in wanted_ones)
        return GpuView(known=known, mig_enabled=mig_enabled, instances=instances, described=described, rule=rule)

    return together(node.nvml, gpu_uuid, look)


def _get_mig_enabled(node: Node, gpu_uuid: str) -> bool:
    return node.nvml.get_mig_mode(gpu_uuid).current == codes.MIG_ENABLED


def _undo(node: Node, record: ClaimRecord, deadline: Deadline) -> tuple[Grant, ...]:
    """Undo a half-done or lost record of the claim itself, all its GPUs locked. Returns what stays granted to it."""
    if record.state is ClaimState.PREPARED:
        record = render_lost(record)  # to a boot or a reset
    for device in record.devices:
        release_device(node, record, device, deadline)
    return settle(node, record)


def _wait_for_fabric(node: Node, request: _Request, deadline: Deadline) -> None:
    """A whole GPU of an NVSwitch node is of no use before its fabric is up; wait, bounded, with no GPU lock held."""
    until = Deadline.after(min(node.fabric_wait_s, deadline.left_s))
    for one in request.wanted:
        if one.profile is not None or one.result.admin_access or one.gpu_uuid in node.fabricless:
            continue
        deadline.check(f"the fabric state of GPU {one.gpu_uuid}")
        while (state := _get_fabric_state(node, one.gpu_uuid)) in (codes.FABRIC_NOT_STARTED, codes.FABRIC_IN_PROGRESS):
            if until.left_s <= _FABRIC_PAUSE_S:
                raise TryAgain(
                    f"claim {request.claim.ref.namespace}/{request.claim.ref.name}: device {one.result.device}: the "
                    f"NVSwitch fabric of GPU {one.gpu_uuid} is not up (state {state}); look at the fabric manager, the "
                    "kubelet tries again by itself"
                )
            time.sleep(_FABRIC_PAUSE_S)


def _get_fabric_state(node: Node, gpu_uuid: str) -> int:
    try:
        return node.nvml.get_fabric_info(gpu_uuid).state
    except NvmlError as error:
        if error.code in (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND):
            node.fabricless.add(gpu_uuid)  # for good: a board has an NVSwitch port or has none
            return codes.FABRIC_NOT_SUPPORTED
        raise TryAgain(
            f"GPU {gpu_uuid} does not tell its fabric state: {error}; the kubelet tries again by itself"
        ) from error
