"""Admin operations on the processes of a simulated GPU: `busy`, `idle`, and real processes that the GPU lets go of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, get_args

from tesela.core.errors import DocumentError
from tesela.edge.simulator.admin_fields import Fields
from tesela.edge.simulator.gpu import Process, ProcessKind
from tesela.edge.simulator.real_process import RealProcess

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

_MAX_PID: Final = 2**31 - 1
_MAX_MEMORY_MIB: Final = 1 << 30
_LOOK_AGAIN_S: Final = 1.0


def _busy(machine: Machine, fields: Fields) -> None:
    kind = fields.optional_text("kind") or "compute"
    kinds: tuple[ProcessKind, ...] = get_args(ProcessKind)
    chosen = next((known for known in kinds if known == kind), None)
    if chosen is None:
        raise DocumentError("kind", f"{kind!r} is none of {', '.join(kinds)}")
    memory_mib = fields.count("memory_mib")
    if memory_mib > _MAX_MEMORY_MIB:
        raise DocumentError("memory_mib", f"{memory_mib} is more than {_MAX_MEMORY_MIB}")
    name = fields.optional_text("name")
    process = Process(
        pid=fields.number("pid"),
        gi_id=fields.optional_number("gi"),
        ci_id=fields.optional_number("ci"),
        kind=chosen,
        name=name or "simulated",
        memory_bytes=memory_mib << 20,
    )
    gpu, is_real = fields.text("gpu"), fields.flag("real")
    fields.finish()
    if not 1 <= process.pid <= _MAX_PID:
        raise DocumentError("pid", f"{process.pid} is outside 1..{_MAX_PID}")
    if not is_real:
        machine.add_process(gpu, process)
        return
    real = RealProcess.find(process.pid)
    shown = process.name if name is not None else real.read_name() or process.name
    try:
        machine.add_process(gpu, replace(process, name=shown, real=True))
    except DocumentError:
        real.close()
        raise
    uuid = machine.gpu(gpu).uuid
    name = f"sim-pid-{process.pid}"
    threading.Thread(target=_let_go_when_ended, args=(machine, uuid, real), name=name, daemon=True).start()


def _let_go_when_ended(machine: Machine, gpu_uuid: str, real: RealProcess) -> None:
    """Waits for the process's end, or for somebody else to have taken it off the GPU."""
    try:
        while not real.wait(_LOOK_AGAIN_S):
            if all(process.pid != real.pid for process in machine.gpu(gpu_uuid).processes):
                return
        machine.end_process(gpu_uuid, real.pid)
    finally:
        real.close()


def _idle(machine: Machine, fields: Fields) -> None:
    gpu, pid = fields.text("gpu"), fields.number("pid")
    fields.finish()
    machine.remove_process(gpu, pid)


PROCESS_OPERATIONS: Final[dict[str, Callable[[Machine, Fields], None]]] = {"busy": _busy, "idle": _idle}
