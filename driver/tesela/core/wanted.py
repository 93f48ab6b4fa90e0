"""What an allocation wants, resolved: each result's GPU, profile and placement, by its device name alone.

Pure, and every refusal is a `ClaimRefused` whose message names the claim, the device, the cause and the next step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

from tesela.core.claim import AllocatedClaim, AllocatedResult
from tesela.core.config import DeviceConfig
from tesela.core.errors import ClaimRefused
from tesela.core.model import ClaimRef, LivePartition, Placement, Profile
from tesela.core.naming import PartitionName, WholeName, parse_device_name, render_profile_label
from tesela.core.roster import KnownGpu, Roster

_OTHER_LABEL: Final = re.compile(r"([1-9][0-9]*)g[0-9]+gb(?:-[a-z0-9-]+)?")
"""`1g5gb`, `1g24gb-me`: compute slices, memory, what engines it has or lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One allocation result of ours, resolved: `profile` and `placement` are None for a whole GPU."""

    result: AllocatedResult
    known: KnownGpu
    profile: Profile | None
    placement: Placement | None

    @property
    def gpu_uuid(self) -> str:
        """The GPU it stands on."""
        return self.known.gpu.uuid

    def find_live(self, live: Iterable[LivePartition]) -> LivePartition | None:
        """The one of its GPU's live partitions that stands in its slot; None for a whole GPU, which has no slot."""
        if self.profile is None:
            return None
        slot = (self.profile.profile_id, self.placement)
        return next((one for one in live if (one.profile_id, one.placement) == slot), None)


def plan_wanted(claim: AllocatedClaim, roster: Roster, *, pool: str) -> tuple[Wanted, ...]:
    """Resolve every result to a known GPU, profile and placement, by its name alone (a name never moves)."""
    return tuple(_resolve(claim.ref, result, roster, pool) for result in claim.results)


def _resolve(ref: ClaimRef, result: AllocatedResult, roster: Roster, pool: str) -> Wanted:
    if result.share_id is not None:
        refuse(
            ref,
            result.device,
            "it was allocated as a share of a device, and Tesela does not serve consumable shares: it publishes no "
            "device that allows multiple allocations",
            "look who else publishes devices in this pool, and delete the claim so that it is allocated again",
        )
    if result.pool != pool:
        refuse(
            ref,
            result.device,
            f"it was allocated from pool {result.pool}, and this node's pool is {pool}",
            "delete the claim so that it is allocated again",
        )
    name = parse_device_name(result.device)
    known = roster.find_number(name.number) if name is not None else None
    if name is None or known is None:
        refuse(ref, result.device, "this node has never had such a device", "compare with its ResourceSlices")
    if not known.present:
        refuse(
            ref,
            result.device,
            f"GPU {known.gpu.uuid} does not answer any more",
            "delete the pod so that it gets another GPU, and look at the node",
        )
    match name:
        case WholeName():
            return Wanted(result=result, known=known, profile=None, placement=None)
        case PartitionName():
            return _resolve_partition(ref, result, known, name)


def _resolve_partition(ref: ClaimRef, result: AllocatedResult, known: KnownGpu, name: PartitionName) -> Wanted:
    profile = next((p for p in known.gpu.profiles if p.profile_id == name.profile_id), None)
    placements = profile.placements if profile is not None else ()
    placement = next((p for p in placements if p.start == name.start), None)
    if profile is None or placement is None:
        refuse(
            ref,
            result.device,
            f"GPU {known.gpu.uuid} ({known.gpu.product_name}) has no profile {name.profile_id} at {name.start}",
            "delete the claim so that it is allocated again",
        )
    if not _may_be_called(profile, name.profile_label):
        refuse(
            ref,
            result.device,
            f"profile {profile.profile_id} of GPU {known.gpu.uuid} is {profile.name}, and no driver calls it "
            f"{name.profile_label}",
            "delete the claim so that it is allocated again, and look who else publishes devices in this pool",
        )
    return Wanted(result=result, known=known, profile=profile, placement=placement)


def _may_be_called(profile: Profile, label: str) -> bool:
    """Whether a driver may have called the profile so when the claim was allocated.

    Profile ids are the same in every release of NVIDIA's driver and names are not (docs/decisions/0009): the memory
    and the suffix may differ, the compute slices never do.
    """
    if label == render_profile_label(profile.name):
        return True
    other = _OTHER_LABEL.fullmatch(label)
    return other is not None and int(other[1]) == profile.compute_slices


def plan_time_slice(one: Wanted, config: DeviceConfig) -> str | None:
    """The interval to apply. It has no effect on a partition: accepted there and not applied.

    Admin access changes nothing (invariant 4).
    """
    return config.time_slice if one.profile is None and not one.result.admin_access else None


def refuse(ref: ClaimRef, device: str, cause: str, next_step: str) -> NoReturn:
    """Raise ClaimRefused in the words of this house."""
    raise ClaimRefused(f"claim {ref.namespace}/{ref.name}: device {device}: {cause}; {next_step}")
