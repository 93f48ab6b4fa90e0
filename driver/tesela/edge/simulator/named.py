"""The NVML functions that clients other than the driver call: found by name, applied to a machine.

A name that no row knows is FUNCTION_NOT_FOUND and logged once, so that a newcomer's log tells what it lacks. Faults,
latencies and hangs meet these calls as they meet the port's; a function that the port has too keeps one name for both.
"""

from __future__ import annotations

import json
import logging
import threading
from importlib import resources
from typing import TYPE_CHECKING, Final, NoReturn

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator import (
    named_activity,
    named_board,
    named_facts,
    named_handles,
    named_health,
    named_mig,
    named_topology,
    named_use,
    telemetry,
)
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import GpuRow, NodeRow, Row
from tesela.edge.simulator.targets import NamedAnswer, NamedRequest, find_target

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

_LOG: Final = logging.getLogger(__name__)
_MAX_UNKNOWN: Final = 1000
_MAX_NAME: Final = 80
# The first one, where two methods of the port are one function of NVML.
_METHODS: Final = {nvml: method for method, nvml in reversed(FUNCTIONS.items())} | {
    "nvmlDeviceGetMemoryInfo_v2": "get_memory_info"
}

_PARTS: Final = (
    named_handles,
    named_mig,
    named_board,
    named_use,
    named_topology,
    named_health,
    named_facts,
    telemetry,
    named_activity,
)
NAMED: Final[dict[str, Row]] = {row.function: row for part in _PARTS for row in part.ROWS}
"""Every named call."""
UNSIMULATED: Final[frozenset[str]] = frozenset(
    json.loads((resources.files("tesela.edge.simulator") / "unsimulated.json").read_text(encoding="utf-8"))
)
"""What the C library exports and nobody simulates; a test holds the list to nvml-sim."""
HANDLE_BY_INDEX: Final = "nvmlDeviceGetHandleByIndex_v2"
"""What faults call the search for a GPU by its index, the port's `get_uuid` with an index."""


def fault_name(function: str) -> str:
    """The name under which faults know an NVML function: the port's where it has one, else NVML's own."""
    return _METHODS.get(function, function)


class NamedCalls:
    """Answers named calls on `machine`; safe to call from many threads."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._unknown: set[str] = set()
        self._lock = threading.Lock()

    def answer(self, request: NamedRequest) -> NamedAnswer:
        """What the function answers. NvmlError: its refusal, FUNCTION_NOT_FOUND where nobody simulates it."""
        row = NAMED.get(request.function)
        gpu = request.gpu or None
        if row is None:
            self._tell_once(request.function)
            if request.function in UNSIMULATED:
                self.machine.perform(request.function, gpu, _refuse)
            raise NvmlError(codes.FUNCTION_NOT_FOUND, request.function, codes.TEXTS[codes.FUNCTION_NOT_FOUND])
        return self.machine.perform(fault_name(row.function), gpu, lambda: self._apply(row, request))

    def _apply(self, row: Row, request: NamedRequest) -> NamedAnswer:
        if len(request.numbers) != row.numbers:
            raise Refused(codes.INVALID_ARGUMENT)
        match row:
            case NodeRow():
                if bool(request.gpu) != row.takes_gpu or request.gi_id is not None or request.ci_id is not None:
                    raise Refused(codes.INVALID_ARGUMENT)
                return row.rule(self.machine, request)
            case GpuRow():
                if not request.gpu:
                    raise Refused(codes.INVALID_ARGUMENT)
                return self.machine.with_gpu(
                    request.gpu,
                    lambda gpu: row.rule(find_target(self.machine, gpu, row.target, request)),
                    changes=row.changes,
                )

    def _tell_once(self, function: str) -> None:
        name = "".join(letter if letter.isprintable() else "?" for letter in function[:_MAX_NAME])
        with self._lock:
            if name in self._unknown or len(self._unknown) >= _MAX_UNKNOWN:
                return
            self._unknown.add(name)
        _LOG.warning("a client called %s, which the simulator does not know: FUNCTION_NOT_FOUND", name)


def _refuse() -> NoReturn:
    raise Refused(codes.FUNCTION_NOT_FOUND)
