"""Faults and latencies as data, and the script that decides which of them a call meets.

Functions are named as the port names them or as NVML does; both mean the same. GPUs are named by UUID. What a fault
does to a call is decided in `machine`; nothing here sleeps or raises NVML's codes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator.named import NAMED, fault_name

ANY_FUNCTION: Final = "*"


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
    """Every call of `function` ("*": of any) takes `seconds` longer, until cleared."""

    function: str
    seconds: float
    gpu: str | None = None


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


@dataclass(slots=True)
class _Armed:
    what: Fault | Hang
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
        self._latencies: list[tuple[str, Latency]] = []

    def add(self, what: Misbehaviour) -> None:
        """Arms `what`. DocumentError: an unknown function, or a misbehaviour that function cannot show."""
        function = method_of(what.function)
        match what:
            case Latency(seconds=seconds):
                if not 0 <= seconds <= 3600:
                    raise DocumentError("seconds", f"{seconds} is outside 0..3600")
                with self._lock:
                    self._latencies.append((function, what))
            case Fault() | Hang():
                _check(what, function)
                with self._lock:
                    self._armed.append(_Armed(what, function))

    def clear(self) -> None:
        """Forgets every fault, latency and hang that has not begun."""
        with self._lock:
            self._armed.clear()
            self._latencies.clear()

    def list(self) -> tuple[Misbehaviour, ...]:
        """What is still armed."""
        with self._lock:
            return (*(armed.what for armed in self._armed), *(latency for _, latency in self._latencies))

    @property
    def is_empty(self) -> bool:
        """Whether no call can meet anything."""
        return not self._armed and not self._latencies

    def verdict(self, function: str, gpu_uuid: str | None) -> Verdict:
        """What this call of `function` (port name) on `gpu_uuid` meets; counts it."""
        if self.is_empty:
            return NOTHING
        with self._lock:
            latency_s = sum(w.seconds for f, w in self._latencies if _concerns(f, w.gpu, function, gpu_uuid))
            hang, fault = False, None
            for armed in self._armed:
                if not _concerns(armed.function, armed.what.gpu, function, gpu_uuid):
                    continue
                if isinstance(armed.what, Hang):
                    hang = armed.fires() or hang
                elif fault is None and armed.fires():
                    fault = armed.what
            self._armed = [armed for armed in self._armed if not armed.exhausted]
            return Verdict(latency_s=latency_s, hang=hang, fault=fault)


def method_of(function: str) -> str:
    """The port's name of `function`, which may be NVML's, or NVML's where the port has none. DocumentError: unknown."""
    method = fault_name(function)
    if method not in FUNCTIONS and method not in NAMED and method != ANY_FUNCTION:
        known = sorted({*FUNCTIONS.values(), *NAMED})
        raise DocumentError(
            "function", f"{function!r} is no NVML function that is simulated; known are {', '.join(known)}"
        )
    return method


def _concerns(armed_function: str, armed_gpu: str | None, function: str, gpu_uuid: str | None) -> bool:
    return armed_function in {function, ANY_FUNCTION} and armed_gpu in {None, gpu_uuid}


def _check(what: Fault | Hang, function: str) -> None:
    if what.after < 0 or (what.times is not None and what.times < 1):
        raise DocumentError("times", "a fault passes 0 or more calls and then meets 1 or more")
    if isinstance(what, Hang):
        return
    code = what.code if what.activation_status is None else what.activation_status
    if code != codes.UNKNOWN and not 0 <= code <= codes.HIGHEST_RETURN_CODE:
        known = f"0 to {codes.HIGHEST_RETURN_CODE} and {codes.UNKNOWN}"
        raise DocumentError("code", f"NVML has no return code {code}; it has {known}")
    if what.activation_status is not None:
        if function != "set_mig_mode":
            raise DocumentError("activation_status", f"only set_mig_mode has one, not {function}")
    elif what.code == codes.SUCCESS and not (function.startswith("destroy_") and what.when == "before"):
        raise DocumentError("code", f"SUCCESS without effect is known of destroy calls only, not of {function}")
