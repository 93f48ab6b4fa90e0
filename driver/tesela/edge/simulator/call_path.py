"""The way of an NVML call through a simulated machine: hooks, latency, hangs, faults, and then the rule itself.

Latency and hangs are spent before any GPU's lock is taken, so that reads of a GPU whose call hangs go on. No GPU is
known here; `machine` has them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias, TypeVar, cast

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator.faults import Fault, FaultScript, Misbehaviour, Verdict
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.state import CallPhase, CallState

R = TypeVar("R")
Phase: TypeAlias = Literal["before", "after"]
CallHook: TypeAlias = Callable[[str, Phase], None]
"""Told of every call by its port name, before it and after its success; what it raises reaches the caller."""


class CallPath:
    """What every call of one machine goes through; safe to use from many threads."""

    def __init__(self) -> None:
        self.on_call: list[CallHook] = []
        self._faults = FaultScript()
        self._gate = threading.Condition()
        self._releases = 0
        self._calls: dict[int, CallState] = {}
        self._numbers = itertools.count()

    def perform(
        self,
        function: str,
        gpu_uuid: str | None,
        body: Callable[[], R],
        *,
        not_activated: Callable[[int], R] | None = None,
        also: str | None = None,
    ) -> R:
        """Runs `body` as the NVML call `function` (port name): hooks, latency, hangs, faults, then the rule itself.

        `also` is a second name by which faults know this call.
        `not_activated` runs instead where a fault says that a MIG mode stays pending, with that activation status.
        """
        if not self.on_call and self._faults.is_empty:
            try:
                return body()
            except Refused as refused:
                raise nvml_error(refused.code, function) from None
        self._tell(function, "before")
        releases = self._releases  # before the verdict: a release beside it ends what the verdict says
        verdict = self._faults.verdict({function, also}, gpu_uuid)
        with self._held_up(function, gpu_uuid, verdict, releases):
            result = self._decide(function, verdict.fault, body, not_activated)
        self._tell(function, "after")
        return result

    def arm(self, what: Misbehaviour) -> None:
        """Arms a fault, a latency or a hang on all GPUs, or on one by UUID. DocumentError: FaultScript.add has them."""
        self._faults.add(what)

    def misbehaviours(self) -> tuple[Misbehaviour, ...]:
        """Everything still armed."""
        return self._faults.list()

    def release(self) -> None:
        """Forgets all faults, latencies and hangs, and lets every call that one of these holds up go on."""
        self._faults.clear()
        with self._gate:
            self._releases += 1
            self._gate.notify_all()

    def list_calls(self) -> tuple[CallState, ...]:
        """The calls that a latency or a hang holds up, in order of their coming, until each has its result."""
        with self._gate:
            return tuple(self._calls.values())

    def wait_for_hung_calls(self, count: int, timeout_s: float) -> bool:
        """Whether `count` calls hang within `timeout_s`: tests wait on this instead of sleeping."""
        with self._gate:
            return self._gate.wait_for(lambda: self._count_hung() >= count, timeout_s)

    def _decide(
        self, function: str, fault: Fault | None, body: Callable[[], R], not_activated: Callable[[int], R] | None
    ) -> R:
        if fault is not None and fault.when == "before" and fault.activation_status is None:
            if fault.code != codes.SUCCESS:
                raise nvml_error(fault.code, function)
            return cast("R", None)  # FaultScript allows this for the destroy calls only, and they return nothing
        try:
            if fault is not None and fault.activation_status is not None and not_activated is not None:
                result = not_activated(fault.activation_status)
            else:
                result = body()
        except Refused as refused:
            raise nvml_error(refused.code, function) from None
        if fault is not None and fault.when == "after" and fault.code != codes.SUCCESS:
            raise nvml_error(fault.code, function)
        return result

    def _tell(self, function: str, phase: Phase) -> None:
        for hook in self.on_call:
            hook(function, phase)

    @contextmanager
    def _held_up(self, function: str, gpu_uuid: str | None, verdict: Verdict, releases: int) -> Iterator[None]:
        if not verdict.latency_s and not verdict.hang:
            yield
            return
        number = next(self._numbers)

        def enter(phase: CallPhase) -> None:
            self._calls[number] = CallState(function=FUNCTIONS.get(function, function), gpu=gpu_uuid, phase=phase)
            self._gate.notify_all()

        try:
            with self._gate:
                if verdict.latency_s:
                    enter("slow")
                    self._gate.wait_for(lambda: self._releases != releases, verdict.latency_s)
                if verdict.hang:
                    enter("hung")
                    # Unbounded on purpose: a call that never comes back; the driver's watchdog is what bounds it.
                    self._gate.wait_for(lambda: self._releases != releases)
                enter("ending")
            yield
        finally:
            with self._gate:
                del self._calls[number]

    def _count_hung(self) -> int:
        return sum(call.phase == "hung" for call in self._calls.values())


def nvml_error(code: int, function: str) -> NvmlError:
    """NVML's answer `code` to `function` (the port's name or NVML's), in NVML's words."""
    return NvmlError(code, FUNCTIONS.get(function, function), codes.TEXTS.get(code, ""))
