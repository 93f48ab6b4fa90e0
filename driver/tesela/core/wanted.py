"""What an allocation wants, resolved: each result's GPU, profile and placement, by its device name alone.

Pure, and every refusal is a `ClaimRefused` whose message names the claim, the device, the cause and the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tesela.core.claim import AllocatedClaim, AllocatedResult
from tesela.core.config import DeviceConfig
from tesela.core.errors import ClaimRefused
from tesela.core.model import ClaimRef, Placement, Profile
from tesela.core.naming import PartitionName, WholeName, parse_device_name
from tesela.core.roster import KnownGpu, Roster


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
            return Wanted(result=result, known=known, profile=profile, placement=placement)


def plan_time_slice(one: Wanted, config: DeviceConfig) -> str | None:
    """The interval to apply. It has no effect on a partition: accepted there and not applied.

    Admin access changes nothing (invariant 4).
    """
    return config.time_slice if one.profile is None and not one.result.admin_access else None


def refuse(ref: ClaimRef, device: str, cause: str, next_step: str) -> NoReturn:
    """Raise ClaimRefused in the words of this house."""
    raise ClaimRefused(f"claim {ref.namespace}/{ref.name}: device {device}: {cause}; {next_step}")
