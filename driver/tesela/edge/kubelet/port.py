"""What the kubelet's calls need from the node program. Declared here, where it is used, so that tests can fake it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tesela.core.model import ClaimRef, PreparedDevice, Refusal

PrepareResult = tuple[PreparedDevice, ...] | Refusal
"""The devices of one claim, in the order of its allocation, or why it gets none."""


class NodeService(Protocol):
    """Prepares claims and gives their devices back. Called from many threads at once.

    `claims` belong to one pod, have distinct UIDs and are usable as file names. `deadline_s` is the time left until the
    answer has to be ready; what is not done by then belongs into the answer as an error of its claim. Both calls are
    idempotent: the kubelet repeats them after its own restart, and after a failure.
    """

    def prepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, PrepareResult]:
        """By claim UID, one entry for each claim."""
        ...

    def unprepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, str | None]:
        """By claim UID, one entry for each claim: None for success, which an unknown claim is too, else a sentence."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """How one published device is: `healthy` is None where nobody can tell.

    `message` is a sentence for the owner of a pod. Both are shown in the pod's
    `status.containerStatuses[].allocatedResourcesStatus`, a message of at most 1024 bytes (KEP-4680).
    """

    pool: str
    device: str
    healthy: bool | None
    message: str = ""


class HealthSource(Protocol):
    """Knows the health of every published device. Called from several threads at once."""

    def get_report(self) -> tuple[DeviceHealth, ...]:
        """All devices, each once, as they are now. From memory and files: it never waits for a GPU."""
        ...

    def listen(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change`, from any thread and without anything held, whenever a report may differ from the last."""
        ...
