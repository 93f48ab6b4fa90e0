"""What a GPU offers: its policy, then its MIG mode, decide between the whole GPU, its partitions, both or nothing.

Only durable facts count (the roster and the policy), so that a restart publishes the same. Whether a device that fits
the shape may be handed out right now is for fences, taints and the allocator.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from enum import StrEnum

from tesela.core.health.signals import DEFAULT_HEALTH_POLICY, HealthPolicy
from tesela.core.model import Profile, Shape
from tesela.core.roster import KnownGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """One rule: `mode` for the GPUs that it names, by one of three ways or, with none given, for every GPU.

    `product` is a glob over NVML's product name, `number` the N of `gpu-N`. `allowed_profiles` are profile names as
    published (`1g.5gb`); None allows all.
    """

    mode: Shape
    product: str | None = None
    uuid: str | None = None
    number: int | None = None
    allowed_profiles: tuple[str, ...] | None = None

    def matches(self, known: KnownGpu) -> bool:
        """Whether this rule speaks about `known`."""
        if self.uuid is not None:
            return known.gpu.uuid == self.uuid
        if self.number is not None:
            return known.number == self.number
        return self.product is None or fnmatch.fnmatchcase(known.gpu.product_name, self.product)


ON_DEMAND = PolicyRule(mode=Shape.ON_DEMAND)
"""What a GPU that no rule names gets: partitions on demand where its MIG mode allows them, else the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operator's rules in order of precedence: the first that matches a GPU decides for it alone.

    `health` is the table of health signals with the operator's changes.
    """

    rules: tuple[PolicyRule, ...] = ()
    health: HealthPolicy = DEFAULT_HEALTH_POLICY

    def find_rule(self, known: KnownGpu) -> PolicyRule:
        """The rule for one GPU."""
        return next((rule for rule in self.rules if rule.matches(known)), ON_DEMAND)


DEFAULT_POLICY = Policy()
"""No rules: on demand everywhere."""


def explain_withheld(rule: PolicyRule, profile: Profile | None, *, mig_enabled: bool) -> str | None:
    """Why the policy keeps a device of its GPU back (`profile` None: the whole GPU), None where it lets it out.

    The policy alone, in words that follow "its GPU is": what a mode makes of a GPU is `plan_shape`'s.
    """
    match rule.mode:
        case Shape.IGNORE:
            return "set to ignore in the policy file"
        case Shape.WHOLE if profile is not None:
            return "set to be given whole in the policy file"
        case Shape.STATIC if profile is None and mig_enabled:
            return "in MIG mode and set to static partitions in the policy file"
    if profile is not None and rule.allowed_profiles is not None and profile.name not in rule.allowed_profiles:
        return f"set to the profiles {', '.join(rule.allowed_profiles) or 'none'} in the policy file"
    return None


class PartitionSource(StrEnum):
    """Where the partitions of a shape come from: every legal one, those that live already, or none at all."""

    ON_DEMAND = "onDemand"
    STATIC = "static"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedShape:
    """What one GPU offers. `remark` says why it offers nothing, or less than its policy asks for; "" otherwise."""

    whole: bool
    partitions: PartitionSource
    allowed_profiles: frozenset[str] | None = None
    remark: str = ""

    def allows(self, profile: Profile) -> bool:
        """Whether the policy lets this profile out."""
        return self.allowed_profiles is None or profile.name in self.allowed_profiles


def plan_shape(known: KnownGpu, policy: Policy) -> OfferedShape:
    """What `known` offers under `policy`.

    On demand: a GPU that changes MIG mode without a reset offers the whole GPU and its partitions whatever its mode is
    now; another one the shape of its mode. Whole: the whole GPU, unless MIG is on and only a reset turns it off.
    Static: the partitions that somebody else made while MIG is on, else the whole GPU. Ignore: nothing.
    """
    rule = policy.find_rule(known)
    allowed = None if rule.allowed_profiles is None else frozenset(rule.allowed_profiles)
    gpu = known.gpu
    match rule.mode:
        case Shape.IGNORE:
            return OfferedShape(whole=False, partitions=PartitionSource.NONE)
        case Shape.WHOLE:
            return _plan_whole(known)
        case Shape.STATIC:
            if gpu.mig_enabled:
                return OfferedShape(whole=False, partitions=PartitionSource.STATIC, allowed_profiles=allowed)
            return _plan_whole(known)
        case Shape.ON_DEMAND:
            if not gpu.profiles or not (gpu.resetless_mig or gpu.mig_enabled):
                return _plan_whole(known)
            return OfferedShape(whole=gpu.resetless_mig, partitions=PartitionSource.ON_DEMAND, allowed_profiles=allowed)


def _plan_whole(known: KnownGpu) -> OfferedShape:
    gpu = known.gpu
    if gpu.mig_enabled and not gpu.resetless_mig:
        return OfferedShape(
            whole=False,
            partitions=PartitionSource.NONE,
            remark=f"{known.name} ({gpu.uuid}) offers nothing: MIG mode is on and only a GPU reset turns it off; run "
            f"`nvidia-smi -i {gpu.uuid} -mig 0` and reset the GPU, or give it the mode onDemand or static",
        )
    return OfferedShape(whole=True, partitions=PartitionSource.NONE)
