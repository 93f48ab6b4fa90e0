"""What the driver tells of itself while it works: the port `Telemetry`, and `SILENT`, which hears nothing.

The driver's own parts know this file and `work` alone. Whether numbers and spans come of it, and where they go, is the
business of `recorder`, `metrics` and `traces`. Nothing here may raise, block or decide.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Final, Protocol


class Phase(StrEnum):
    """A part of the work on a claim, in the order in which they come. One may occur several times in a call."""

    CLAIM_LOCK = "claim_lock"
    READ_RECORD = "read_record"
    READ_CLAIM = "read_claim"
    FABRIC = "fabric"
    RECOVERY = "recovery"
    GPU_LOCK = "gpu_lock"
    LOOK = "look"
    PLAN = "plan"
    RECORD = "record"
    MODE = "mode"
    CREATE = "create"
    TIME_SLICE = "time_slice"
    DESTROY = "destroy"
    FILES = "files"


class Result(StrEnum):
    """How an operation or a phase ended.

    REFUSED: this claim will not be served as it stands. RETRY: the same call may succeed later. ERROR: a fault of
    files, of NVML or of the driver.
    """

    OK = "ok"
    REFUSED = "refused"
    RETRY = "retry"
    ERROR = "error"


class Telemetry(Protocol):
    """Where the driver's parts say what they do. Safe for many threads; costs next to nothing."""

    def operation(self) -> AbstractContextManager[None]:
        """The block is all of this thread's `work.WORK`; what leaves it as an error is its failure."""
        ...

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """The block is this part of the thread's work; outside of any claim's work it is nothing."""
        ...

    def observe_nvml_call(self, function: str, code: int | None, seconds: float) -> None:
        """NVML's `function` answered `code` (nvmlReturn_t) after `seconds`; None: it was given up or not tried."""

    def observe_api_request(self, verb: str, resource: str, code: int) -> None:
        """The API server answered `code` (0: not at all) to a verb of RBAC on a resource's plural name."""

    def observe_lock_wait(self, lock: str, seconds: float) -> None:
        """A lock of kind `lock` (claim, gpu, roster...) was had, or given up, after `seconds`."""

    def count_slice_write(self) -> None:
        """A ResourceSlice was created, replaced or deleted."""

    def count_record_set_aside(self) -> None:
        """A damaged file of ours was kept aside and replaced."""

    def count_xids(self, gpu_uuid: str, xid: int, count: int = 1) -> None:
        """The GPU reported `count` Xid errors of this number."""


class _Silent:
    """The telemetry of a driver that nobody watches."""

    def __init__(self) -> None:
        self._nothing: AbstractContextManager[None] = nullcontext()

    def operation(self) -> AbstractContextManager[None]:
        return self._nothing

    def phase(self, phase: Phase) -> AbstractContextManager[None]:  # noqa: ARG002 -- the port's signature, below too
        return self._nothing

    def observe_nvml_call(self, function: str, code: int | None, seconds: float) -> None:
        pass

    def observe_api_request(self, verb: str, resource: str, code: int) -> None:
        pass

    def observe_lock_wait(self, lock: str, seconds: float) -> None:
        pass

    def count_slice_write(self) -> None:
        pass

    def count_record_set_aside(self) -> None:
        pass

    def count_xids(self, gpu_uuid: str, xid: int, count: int = 1) -> None:
        pass


SILENT: Final[Telemetry] = _Silent()
