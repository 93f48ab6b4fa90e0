"""An allocated claim, as much of it as a node driver reads: our results and the configs addressed to us.

`edge/documents/claim.py` makes these from the API's object; the opaque parameters stay raw here and are decoded by
`edge/documents/config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tesela.core.model import ClaimRef


def base_request(request: str) -> str:
    """The name that a pod uses: results of a prioritized request carry `request/subrequest`."""
    return request.split("/", 1)[0]


class ConfigSource(StrEnum):
    """Who wrote a config. A claim's overrides a class's (AllocationConfigSource, resource.k8s.io/v1)."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedResult:
    """One device of ours that the claim was given (DeviceRequestAllocationResult).

    `request` is the allocation's own name, `request/subrequest` for a prioritized one.
    """

    request: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None

    @property
    def base_request(self) -> str:
        """The name that the pod uses."""
        return base_request(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawConfig:
    """A config addressed to this driver, not decoded yet. Empty `requests` means all of them.

    `index` is its place in `status.allocation.devices.config`: later ones of one source override earlier ones.
    """

    index: int
    source: ConfigSource
    requests: tuple[str, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedClaim:
    """A claim with an allocation. `results` and `configs` are this driver's only, in the allocation's order."""

    ref: ClaimRef
    pod_claim_name: str | None
    results: tuple[AllocatedResult, ...]
    configs: tuple[RawConfig, ...] = ()
