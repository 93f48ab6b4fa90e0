"""Named calls about who uses a GPU or a MIG device: memory and processes. What is used follows the processes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process, ProcessKind
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import GpuRow, GpuRule, NodeRow, Row, words
from tesela.edge.simulator.targets import Asked, NamedAnswer, NamedRequest

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

_NONE: Final = 0xFFFFFFFF


def _memory(asked: Asked) -> NamedAnswer:
    """Total, reserved, free and used bytes; a MIG device has those of its GPU instance, whoever in it uses them."""
    if asked.gpu_instance is None:
        total, reserved, used = asked.gpu.memory_use()
    else:
        total, reserved, used = asked.gpu.instance_memory_use(asked.gpu_instance)
    return NamedAnswer((total, reserved, total - reserved - used, used))


def _processes(kind: ProcessKind) -> GpuRule:
    def rule(asked: Asked) -> NamedAnswer:
        shown = [p for p in asked.gpu.processes if p.kind == kind and _is_there(p, asked)]
        return NamedAnswer(tuple(chain.from_iterable(_numbers(p) for p in shown)))

    return rule


def _is_there(process: Process, asked: Asked) -> bool:
    """The GPU shows all, as it does to privileged callers, and a MIG device its own."""
    if asked.gpu_instance is None or asked.compute_instance is None:
        return True
    return process.gi_id == asked.gpu_instance.gi_id and process.ci_id in {None, asked.compute_instance.ci_id}


def _numbers(process: Process) -> tuple[int, int, int, int]:
    gi_id = _NONE if process.gi_id is None else process.gi_id
    ci_id = _NONE if process.ci_id is None else process.ci_id
    return process.pid, process.memory_bytes, gi_id, ci_id


def _process_name(machine: Machine, request: NamedRequest) -> NamedAnswer:
    (pid,) = request.numbers
    for gpu in machine.snapshot().gpus:
        for process in gpu.processes:
            if process.pid == pid:
                return words(process.name)
    raise Refused(codes.NOT_FOUND)


ROWS: Final[tuple[Row, ...]] = (
    NodeRow(function="nvmlSystemGetProcessName", numbers=1, rule=_process_name),
    GpuRow(function="nvmlDeviceGetMemoryInfo_v2", target="D", rule=_memory),
    GpuRow(function="nvmlDeviceGetComputeRunningProcesses_v3", target="D", rule=_processes("compute")),
    GpuRow(function="nvmlDeviceGetGraphicsRunningProcesses_v3", target="D", rule=_processes("graphics")),
    GpuRow(function="nvmlDeviceGetMPSComputeRunningProcesses_v3", target="D", rule=lambda _asked: NamedAnswer()),
)
