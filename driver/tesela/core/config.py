"""What an opaque config asks for, and which config governs a device.

The shapes on the wire and their strict decoding are in `edge/documents/config.py`. Which one wins (driver defaults,
class configs, claim configs) follows NVIDIA's driver, except that a config for a request also covers its
subrequests, as the API says it does (DeviceClaimConfiguration.requests, resource.k8s.io/v1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from tesela.core.claim import AllocatedClaim, AllocatedResult, ConfigSource
from tesela.core.errors import ClaimRefused


class TimeSliceInterval(StrEnum):
    """How long a process keeps the GPU before another of the same priority runs; the hardware's own four steps."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def number(self) -> int:
        """The argument of `nvidia-smi compute-policy --set-timeslice`."""
        return list(TimeSliceInterval).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfig:
    """For a whole GPU. `time_slice` is the interval to apply; None leaves the GPU's scheduling as it is."""

    time_slice: TimeSliceInterval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDeviceConfig:
    """For a partition. Time slicing is accepted there and changes nothing, so `time_slice` is always None."""

    time_slice: TimeSliceInterval | None = None


DeviceConfig: TypeAlias = GpuConfig | MigDeviceConfig

_DEFAULTS: Final[tuple[DeviceConfig, ...]] = (GpuConfig(), MigDeviceConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedConfig:
    """A decoded config with its address. Empty `requests` means all; `index` is its place in the allocation's list."""

    index: int
    source: ConfigSource
    requests: tuple[str, ...]
    config: DeviceConfig


def resolve_config(
    claim: AllocatedClaim, configs: Sequence[SourcedConfig], result: AllocatedResult, *, whole: bool
) -> DeviceConfig:
    """The one config that governs `result`: the claim's last, else the class's last, else the driver's default.

    `configs` are all of `claim`'s, decoded; `whole`: the device is a whole GPU. A config that names the request (or its
    parent) must be of the device's kind: ClaimRefused. One that names no request speaks for devices of its kind only.
    """
    kind = GpuConfig if whole else MigDeviceConfig
    ranked = sorted(configs, key=lambda one: (one.source is ConfigSource.CLAIM, one.index), reverse=True)
    for one in ranked:
        addressed = bool({result.request, result.base_request} & set(one.requests))
        if addressed and not isinstance(one.config, kind):
            raise ClaimRefused(
                f"claim {claim.ref.namespace}/{claim.ref.name}: device {result.device}: the {_owner(one.source)}'s "
                f"config for request {result.request} is a {type(one.config).__name__}, and this device takes a "
                f"{kind.__name__}; change the config's kind, or the request's selector"
            )
        if isinstance(one.config, kind) and (addressed or not one.requests):
            return one.config
    return next(default for default in _DEFAULTS if isinstance(default, kind))


def _owner(source: ConfigSource) -> str:
    return "claim" if source is ConfigSource.CLAIM else "DeviceClass"
