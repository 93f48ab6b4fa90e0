"""Faults and latencies as data, and the script that decides which of them a call meets.

Functions are named as the port names them or as NVML does (`fault_names`). GPUs are named by UUID. What a fault
does to a call is decided in `machine`; nothing here sleeps or raises NVML's codes.
"""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator.fault_names import ANY_FUNCTION, method_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`function` answers `code`: after `after` calls that pass, for `times` calls (None: until cleared).

    `when="before"`: nothing happened on the GPU. `when="after"`: it happened and only the answer is bad. SUCCESS with
    "before" is allowed for the destroy calls: they claim success and leave the instance (seen in the field). With
    `activation_status`, set_mig_mode succeeds with that status and changes the pending mode only.
    """

    function: str
    code: int = codes.UNKNOWN
    gpu: str | None = None
    after: int = 0
    times: int | None = 1
    when: Literal["before", "after"] = "before"
    activation_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """`function` ("*": any) takes `seconds` longer: after `after` calls that pass, for `times` calls (None: all)."""

    function: str
    seconds: float
    gpu: str | None = None
    after: int = 0
    times: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """`function` does not return until `Machine.release`: after `after` calls that pass, for `times` calls."""

    function: str
    gpu: str | None = None
    after: int = 0
    times: int | None = 1


Misbehaviour: TypeAlias = Fault | Latency | Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one call meets."""

    latency_s: float = 0.0
    hang: bool = False
    fault: Fault | None = None


NOTHING: Final = Verdict()
_LONGEST_LATENCY_S: Final = 3600


@dataclass(slots=True)
class _Armed:
    what: Misbehaviour
    function: str
    passed: int = 0
    fired: int = 0

    def fires(self) -> bool:
        """Counts this call and tells whether it meets the misbehaviour."""
        self.passed += 1
        if self.passed <= self.what.after or self.exhausted:
            return False
        self.fired += 1
        return True

    @property
    def exhausted(self) -> bool:
        return self.what.times is not None and self.fired >= self.what.times


class FaultScript:
    """Everything injected into one machine; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []

    def add(self, what: Misbehaviour) -> None:
        """Arms `what`. DocumentError: an unknown function, or a misbehaviour that function cannot show."""
        function = method_of(what.function)
        _check(what, function)
        with self._lock:
            self._armed.append(_Armed(what, function))

    def clear(self) -> None:
        """Forgets every fault, latency and hang that has not begun."""
        with self._lock:
            self._armed.clear()

    def list(self) -> tuple[Misbehaviour, ...]:
        """What is still armed."""
        with self._lock:
            return tuple(armed.what for armed in self._armed)

    @property
    def is_empty(self) -> bool:
        """Whether no call can meet anything."""
        return not self._armed

    def verdict(self, functions: AbstractSet[str | None], gpu_uuid: str | None) -> Verdict:
        """What a call on `gpu_uuid` that faults know by each of `functions` meets; counts it."""
        if self.is_empty:
            return NOTHING
        with self._lock:
            latency_s, hang, fault = 0.0, False, None
            for armed in self._armed:
                if armed.function not in {*functions, ANY_FUNCTION} or armed.what.gpu not in {None, gpu_uuid}:
                    continue
                match armed.what:
                    case Hang():
                        hang = armed.fires() or hang
                    case Latency(seconds=seconds):
                        latency_s += seconds if armed.fires() else 0.0
                    case Fault() as candidate:
                        # The first one alone counts the call: the next one's turn comes after it.
                        if fault is None and armed.fires():
                            fault = candidate
            self._armed = [armed for armed in self._armed if not armed.exhausted]
            return Verdict(latency_s=latency_s, hang=hang, fault=fault)


def _check(what: Misbehaviour, function: str) -> None:
    if what.after < 0:
        raise DocumentError("after", f"{what.after} is no number of calls that pass; give 0 or more")
    if what.times is not None and what.times < 1:
        raise DocumentError("times", f"{what.times} is no number of calls that meet it; give 1 or more")
    match what:
        case Latency(seconds=seconds) if not 0 <= seconds <= _LONGEST_LATENCY_S:
            raise DocumentError("seconds", f"{seconds} is outside 0..{_LONGEST_LATENCY_S}")
        case Fault():
            _check_fault(what, function)
        case _:
            pass


def _check_fault(what: Fault, function: str) -> None:
    nvml = FUNCTIONS.get(function, function)
    code = what.code if what.activation_status is None else what.activation_status
    if code != codes.UNKNOWN and not 0 <= code <= codes.HIGHEST_RETURN_CODE:
        known = f"0 to {codes.HIGHEST_RETURN_CODE} and {codes.UNKNOWN}"
        raise DocumentError("code", f"NVML has no return code {code}; it has {known}")
    if what.activation_status is not None:
        if function != "set_mig_mode":
            raise DocumentError("activation_status", f"only nvmlDeviceSetMigMode has one, not {nvml}")
    elif what.code == codes.SUCCESS and not (function.startswith("destroy_") and what.when == "before"):
        raise DocumentError("code", f"SUCCESS without effect is known of destroy calls only, not of {nvml}")
