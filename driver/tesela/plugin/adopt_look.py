"""What a claim of NVIDIA's driver is judged by: what lives, what its ResourceSlices and the kubelet tell. Reads only.

Each question is asked where it matters alone, since a start waits for the answers: names where the checkpoint has none,
ResourceSlices where a partition is in it, time slices where one was applied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tesela.core.adoption import (
    OTHER_BOOT,
    Adoption,
    AdoptionSight,
    Leave,
    TheirPartitions,
    find_result,
    list_shared,
    plan_adoption,
)
from tesela.core.checkpoint import Checkpoint, TheirClaim, TheirDevice, TheirKind
from tesela.core.claim import AllocatedClaim, AllocatedResult
from tesela.core.config import TimeSliceInterval, resolve_config
from tesela.core.errors import ApiError, ApiUnavailable, ClaimRefused, DocumentError, TryAgain
from tesela.core.model import DRIVER_NAME, ClaimRef, LivePartition
from tesela.core.record import ClaimRecord
from tesela.core.removal import is_device_of_ours
from tesela.core.roster import Roster
from tesela.core.shape import Policy
from tesela.edge.documents.claim import POD_CLAIM_NAME
from tesela.edge.documents.config import decode_configs
from tesela.edge.kube.port import RESOURCE_CLAIMS, RESOURCE_SLICES, Kube
from tesela.edge.kube.retry import with_retries

log = logging.getLogger(__name__)

API_RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Whom to ask. `list_live` is of one GPU by UUID, none where it does not answer.

    `list_names` tells the claims of active pods; TryAgain where the kubelet does not. `list_records` are the claims
    that are ours already. `read_time_slice` gives None where nobody tells.
    """

    pool: str
    policy: Policy
    kube: Kube
    get_boot_id: Callable[[], str]
    get_roster: Callable[[], Roster]
    list_live: Callable[[str], tuple[LivePartition, ...]]
    read_time_slice: Callable[[str], str | None]
    list_names: Callable[[], tuple[ClaimRef, ...]] = lambda: ()
    list_records: Callable[[], tuple[ClaimRecord, ...]] = lambda: ()
    partitions: TheirPartitions = TheirPartitions.AUTO


class AdoptionLook:
    """Judges the claims of one checkpoint."""

    def __init__(self, around: Surroundings, checkpoint: Checkpoint) -> None:
        """TryAgain where the API does not tell how their partitions were made: what is decided now holds for good."""
        self._around = around
        self._is_other_boot = checkpoint.boot_id not in {"", around.get_boot_id()}
        prepared = () if self._is_other_boot else tuple(one for one in checkpoint.claims if one.completed)
        self._names = _read_names(around) if any(not one.name for one in prepared) else {}
        self._on_demand = _read_on_demand(around) if _must_tell_partitions(around, prepared) else frozenset()
        recorded = () if self._is_other_boot else around.list_records()
        self._shared = list_shared(checkpoint) | _list_held(recorded, {one.uid for one in checkpoint.claims})
        self._has_api = True

    @property
    def is_other_boot(self) -> bool:
        """Whether the node has booted since: nothing that was prepared is left."""
        return self._is_other_boot

    def name(self, claim: TheirClaim) -> ClaimRef:
        """The claim as far as anybody tells its name."""
        if claim.name:
            return ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        return self._names.get(claim.uid) or ClaimRef(namespace="", name="", uid=claim.uid)

    def plan(self, claim: TheirClaim) -> Adoption:
        """What becomes of the claim, by what lives now."""
        if self._is_other_boot:
            return Leave(reason=OTHER_BOOT)
        around, ref = self._around, self.name(claim)
        sight = AdoptionSight(
            pool=around.pool,
            boot_id=around.get_boot_id(),
            roster=around.get_roster(),
            policy=around.policy,
            live={uuid: around.list_live(uuid) for uuid in _list_parents(claim)},
            partitions=around.partitions,
            on_demand=self._on_demand,
            shared=self._shared,
            time_slices=dict(self._list_time_slices(claim)),
        )
        return plan_adoption(claim, ref, sight, pod_claim_name=self._read_pod_claim_name(ref))

    def _list_time_slices(self, claim: TheirClaim) -> Iterator[tuple[str, str]]:
        """The interval of each whole GPU that was given one: its config's, else what is in force."""
        for one in claim.devices:
            if one.kind is not TheirKind.GPU or one.mps_daemon or one.time_slice_applied is False:
                continue
            interval = _find_interval(claim.allocation, find_result(claim, one))
            if interval is None and one.time_slice_applied:
                interval = TimeSliceInterval(self._around.read_time_slice(one.gpu_uuid) or TimeSliceInterval.DEFAULT)
            if interval is not None:
                yield one.device, interval.value

    def _read_pod_claim_name(self, ref: ClaimRef) -> str | None:
        """The pod's name for a claim made from a template. It names variables alone, so an answer may be missing.

        An API that is away is asked once: GPUs are locked, and a node has many claims.
        """
        if not ref.name or not self._has_api:
            return None
        try:
            metadata = self._around.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)["metadata"]
        except ApiError as error:
            self._has_api = not isinstance(error, ApiUnavailable)
            log.info("claim %s: the pod's name for it is not known: %s", ref, error)
            return None
        name = (metadata.get("annotations") or {}).get(POD_CLAIM_NAME)
        return str(name) if name and metadata.get("uid") == ref.uid else None


def _list_parents(claim: TheirClaim) -> tuple[str, ...]:
    return tuple(sorted({one.gpu_uuid for one in claim.devices if one.kind is TheirKind.MIG}))


def _must_tell_partitions(around: Surroundings, claims: tuple[TheirClaim, ...]) -> bool:
    devices: Iterator[TheirDevice] = (one for claim in claims for one in claim.devices)
    return around.partitions is TheirPartitions.AUTO and any(one.kind is TheirKind.MIG for one in devices)


def _find_interval(allocation: AllocatedClaim | None, result: AllocatedResult) -> TimeSliceInterval | None:
    if allocation is None:
        return None
    try:
        return resolve_config(allocation, decode_configs(allocation), result, whole=True).time_slice
    except (DocumentError, ClaimRefused) as error:
        log.info("claim %s: its config does not tell a time slice: %s", allocation.ref.uid, error)
        return None


def _read_names(around: Surroundings) -> Mapping[str, ClaimRef]:
    try:
        return {ref.uid: ref for ref in around.list_names()}
    except TryAgain as error:
        log.warning("the names of claims that NVIDIA's driver prepared are told by their next call: %s", error)
        return {}


def _read_on_demand(around: Surroundings) -> frozenset[str]:
    """The devices that consume counters in the node's ResourceSlices: partitions that are there already do not.

    Those slices are still NVIDIA's driver's: the kubelet removes them half a minute after that has ended. Ours, where a
    checkpoint came back under them, tell nothing of what that driver did.
    """
    selector = f"spec.driver={DRIVER_NAME},spec.nodeName={around.pool}"
    try:
        slices = with_retries(
            lambda: around.kube.list(RESOURCE_SLICES, field_selector=selector), threading.Event(), API_RETRY_S
        )
    except ApiError as error:
        raise TryAgain(
            f"whether NVIDIA's driver made its partitions on demand is not known, the API does not tell: {error}; say "
            "it with --adopted-partitions, or start again when the API answers"
        ) from error
    devices = (device for one in slices.items for device in one["spec"].get("devices") or ())
    theirs = (device for device in devices if not is_device_of_ours(device))
    return frozenset(device["name"] for device in theirs if device.get("consumesCounters"))


def _list_held(records: Iterable[ClaimRecord], but: set[str]) -> frozenset[str]:
    """MIG UUIDs in records of ours, of other claims than these."""
    devices = (device for record in records if record.claim.uid not in but for device in record.devices)
    return frozenset(one.mig_uuid for device in devices for one in device.partitions if one.mig_uuid is not None)
