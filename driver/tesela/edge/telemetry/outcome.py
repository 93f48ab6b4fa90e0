"""How a failure is counted: its result for a histogram, its cause for a counter. Few values, so that series stay few.

A cause is sought along the chain of exceptions, because errors are renamed on their way up: a claim's sentence may say
"try again" where a disk is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tesela.core.errors import (
    ApiError,
    ApiUnavailable,
    ClaimRefused,
    DocumentError,
    NvmlError,
    NvmlReleased,
    NvmlTimeout,
    StateError,
    TryAgain,
)
from tesela.edge.nvml import codes
from tesela.edge.telemetry.port import Result

CAUSES: Final = (
    "nvml_timeout",
    "nvml_released",
    "nvml_in_use",
    "nvml_no_room",
    "nvml_gpu_lost",
    "nvml",
    "api_unavailable",
    "api",
    "disk",
    "config",
    "refused",
    "state",
    "busy",
    "internal",
)
"""Every value that `name_cause` returns. `busy` is a lock, a deadline or a recovery under way."""

_NVML_CAUSES: Final = {
    codes.IN_USE: "nvml_in_use",
    codes.INSUFFICIENT_RESOURCES: "nvml_no_room",
    **dict.fromkeys(codes.GPU_GONE, "nvml_gpu_lost"),
}

_CAUSES_OF: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (NvmlTimeout, "nvml_timeout"),
    (NvmlReleased, "nvml_released"),
    (ApiUnavailable, "api_unavailable"),
    (ApiError, "api"),
    (OSError, "disk"),
    (DocumentError, "config"),
    (ClaimRefused, "refused"),
    (StateError, "state"),
    (TryAgain, "busy"),
)
"""The more special ones first: an ApiUnavailable is a TryAgain, too."""


def plan_result(error: BaseException | None) -> Result:
    """The result of a block that `error` left; None: it ended well."""
    if error is None:
        return Result.OK
    if isinstance(error, ClaimRefused | DocumentError):
        return Result.REFUSED
    return Result.RETRY if isinstance(error, TryAgain) else Result.ERROR


def name_cause(error: BaseException) -> str:
    """One of CAUSES: the first along the chain that says more than "refused" or "busy"."""
    causes = [_name_own_cause(one) for one in _list_chain(error)]
    telling = [cause for cause in causes if cause not in {"refused", "busy", "state", "internal"}]
    return telling[0] if telling else causes[0]


def _list_chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _name_own_cause(error: BaseException) -> str:
    if isinstance(error, NvmlError):
        return _NVML_CAUSES.get(error.code, "nvml")
    return next((cause for kind, cause in _CAUSES_OF if isinstance(error, kind)), "internal")
