"""What an operator does to a simulated machine over its socket: JSON objects with an `op`, as `tesela sim` sends them.

NVML calls never come this way. Each operation checks its document strictly: DocumentError names the field.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tesela.core.errors import DocumentError, NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import FabricInfo
from tesela.edge.simulator.admin_fields import Document, Fields
from tesela.edge.simulator.admin_health import HEALTH_OPERATIONS
from tesela.edge.simulator.admin_processes import PROCESS_OPERATIONS
from tesela.edge.simulator.connection import Connections
from tesela.edge.simulator.faults import Fault, Hang, Latency
from tesela.edge.simulator.frames import FrameStream
from tesela.edge.simulator.machine import Machine
from tesela.edge.simulator.state import MachineState
from tesela.edge.simulator.wire import ADMIN, NONE_U32, TEXT, Reader

ADMIN_TIMEOUT_S: Final = 30.0
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class SimulatorAdmin:
    """Sends admin operations to the simulator at `path`."""

    def __init__(self, path: Path, *, timeout_s: float = ADMIN_TIMEOUT_S) -> None:
        self._connections = Connections(path, timeout_s=timeout_s)

    def send(self, document: Document) -> Document:
        """The answer to `document`. DocumentError: the simulator refused it; NvmlError: no answer, or none to read."""
        payload = bytearray()
        TEXT.put(payload, json.dumps(document))
        response = self._connections.request(ADMIN, bytes(payload), "admin")
        try:
            text = TEXT.take(Reader(response.payload))
            answer = json.loads(text) if response.code == codes.SUCCESS else {}
            if not isinstance(answer, dict):
                raise DocumentError("", "it is no JSON object")
        except (DocumentError, ValueError, RecursionError) as error:
            raise NvmlError(codes.UNKNOWN, "admin", f"the simulator's answer cannot be read: {error}") from error
        if response.code == codes.INVALID_ARGUMENT:
            raise DocumentError("", text)
        if response.code != codes.SUCCESS:
            raise NvmlError(response.code, "admin", text)
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self._connections.close()


def perform_admin(machine: Machine, text: str) -> str:
    """Does what the JSON `text` asks and returns the answer as JSON. DocumentError: it cannot be done."""
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # an escape may hold half a character, which is no text
    except (ValueError, RecursionError) as error:
        raise DocumentError("op", f"the request is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise DocumentError("op", "the request is no JSON object")
    fields = Fields(document)
    operation = _OPERATIONS.get(fields.text("op"))
    if operation is None:
        raise DocumentError("op", f"unknown operation {document['op']!r}; known are {', '.join(_OPERATIONS)}")
    answer = operation(machine, fields)
    return json.dumps(answer if answer is not None else {"ok": True})


def render_state(state: MachineState) -> Document:
    """The machine as a JSON document: the field names of `state`, placements as start and size."""
    return dataclasses.asdict(state)


def _status(machine: Machine, fields: Fields) -> Document:
    fields.finish()
    answer = render_state(machine.snapshot())
    armed = [dataclasses.asdict(what) | {"kind": type(what).__name__.lower()} for what in machine.misbehaviours()]
    return answer | {"misbehaviours": armed, "watched_s": FrameStream.watched_s}


def _fail(machine: Machine, fields: Fields) -> None:
    activation = fields.optional_number("activation_status")
    code = fields.optional_number("code")
    when = fields.optional_text("when") or "before"
    if when not in {"before", "after"}:
        raise DocumentError("when", f"{when!r} is neither before nor after")
    fault = Fault(
        function=fields.text("function"),
        code=codes.SUCCESS if activation is not None else codes.UNKNOWN if code is None else code,
        gpu=fields.optional_text("gpu"),
        after=fields.optional_number("after") or 0,
        times=_times(fields),
        when="after" if when == "after" else "before",
        activation_status=activation,
    )
    fields.finish()
    machine.inject(fault)


def _slow(machine: Machine, fields: Fields) -> None:
    latency = Latency(
        function=fields.text("function"),
        seconds=fields.seconds("seconds"),
        gpu=fields.optional_text("gpu"),
        after=fields.optional_number("after") or 0,
        times=fields.optional_number("times"),
    )
    fields.finish()
    machine.inject(latency)


def _hang(machine: Machine, fields: Fields) -> None:
    hang = Hang(
        function=fields.text("function"),
        gpu=fields.optional_text("gpu"),
        after=fields.optional_number("after") or 0,
        times=_times(fields),
    )
    fields.finish()
    machine.inject(hang)


def _times(fields: Fields) -> int | None:
    """How many calls meet a misbehaviour: 1 where nothing is said, None for ever."""
    times = fields.optional_number("times")
    if not fields.flag("forever"):
        return 1 if times is None else times
    if times is not None:
        raise DocumentError("times", "says how many calls, and forever says all; give one of them")
    return None


def _release(machine: Machine, fields: Fields) -> None:
    fields.finish()
    machine.release()


def _lose(machine: Machine, fields: Fields) -> None:
    gpu, absent = fields.text("gpu"), fields.flag("absent")
    fields.finish()
    machine.lose(gpu, absent=absent)


def _reset(machine: Machine, fields: Fields) -> None:
    gpu, force = fields.text("gpu"), fields.flag("force")
    fields.finish()
    machine.reset(gpu, force=force)


def _reboot(machine: Machine, fields: Fields) -> None:
    driver_only = fields.flag("driver_only")
    fields.finish()
    if driver_only:
        machine.reload_driver()
    else:
        machine.reboot()


def _reload(machine: Machine, fields: Fields) -> None:
    driver_version = fields.optional_text("driver")
    fields.finish()
    machine.reload_driver(driver_version)


def _next_gi_id(machine: Machine, fields: Fields) -> None:
    gpu, gi_id = fields.text("gpu"), fields.number("gi")
    fields.finish()
    machine.force_gi_id(gpu, gi_id)


def _fabric(machine: Machine, fields: Fields) -> None:
    gpu = fields.text("gpu")
    fabric = FabricInfo(
        cluster_uuid=fields.optional_text("cluster_uuid") or "",
        clique_id=fields.optional_number("clique_id") or 0,
        state=fields.number("state"),
        status=fields.optional_number("status") or codes.SUCCESS,
    )
    fields.finish()
    if not 0 <= fabric.status <= NONE_U32:
        raise DocumentError("status", f"{fabric.status} is outside 0..{NONE_U32}")
    if not codes.FABRIC_NOT_SUPPORTED <= fabric.state <= codes.FABRIC_COMPLETED:
        raise DocumentError("state", f"{fabric.state} is outside 0..3")
    if not 0 <= fabric.clique_id <= NONE_U32:
        raise DocumentError("clique_id", f"{fabric.clique_id} is outside 0..{NONE_U32}")
    if fabric.cluster_uuid and not _UUID.fullmatch(fabric.cluster_uuid):
        raise DocumentError("cluster_uuid", f"{fabric.cluster_uuid!r} is no UUID")
    machine.set_fabric(gpu, fabric)


_OPERATIONS: Final[dict[str, Callable[[Machine, Fields], Document | None]]] = {
    "status": _status,
    "fail": _fail,
    "slow": _slow,
    "hang": _hang,
    "release": _release,
    **PROCESS_OPERATIONS,
    **HEALTH_OPERATIONS,
    "lose": _lose,
    "reset": _reset,
    "reboot": _reboot,
    "reload": _reload,
    "next-gi-id": _next_gi_id,
    "fabric": _fabric,
}
