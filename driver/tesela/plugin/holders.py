"""Who holds a GPU, or one partition of it: NVML's process lists, and who has the device files open.

For the sentences that explain a refusal, and for the one decision that nobody uses what is given back. A partition's
neighbours on its GPU are never named for it: whoever reads the sentence may end the process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tesela.core.cdi import DeviceNode
from tesela.core.errors import NvmlError, StateError, TryAgain
from tesela.core.model import LivePartition
from tesela.edge.nvml.port import Nvml, ProcessInfo
from tesela.plugin.deadline import Deadline

log = logging.getLogger(__name__)

_NOBODY: Final = "a client that neither NVML nor /proc names (a kernel client, another VM)"
_NO_TIME: Final = "a client that there was no time to name"


class Processes(Protocol):
    """Who on the host has a device node open."""

    def list_gpu_holders(self, minor: int) -> tuple[str, ...]:
        """Processes with /dev/nvidia<minor> open, each as `name (pid 123)`, this process left out."""
        ...

    def list_node_holders(self, nodes: Sequence[DeviceNode]) -> tuple[str, ...]:
        """Likewise for any of these nodes."""
        ...

    def get_capability_nodes(self, minor: int, gi_id: int, ci_id: int) -> tuple[DeviceNode, DeviceNode]:
        """The capability files of a GPU instance and of its compute instance. StateError where the host has none."""
        ...

    def get_command(self, pid: int) -> str:
        """`name (pid 123)` for a PID that NVML reports."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Processes, each as `name (pid 123)`. `complete`: every list was to be had, so that none means nobody."""

    names: tuple[str, ...]
    complete: bool

    def describe(self, deadline: Deadline) -> str:
        """In words, also where nobody can be named."""
        if not self.names and not deadline.left_s:
            return _NO_TIME
        return ", ".join(self.names) or _NOBODY


def list_gpu_holders(nvml: Nvml, processes: Processes, gpu_uuid: str, deadline: Deadline) -> Holders:
    """The processes on a GPU and on its partitions: NVML's lists, and whoever has its device node open.

    It explains an error, so it raises none of NVML's: what cannot be asked, or not in time, makes it incomplete.
    """
    asked = _Asked()
    with asked.part(deadline):
        asked.names.update(processes.get_command(one.pid) for one in nvml.get_compute_running_processes(gpu_uuid))
    with asked.part(deadline):
        asked.names.update(processes.get_command(one.pid) for one in nvml.get_graphics_running_processes(gpu_uuid))
    with asked.part(deadline):
        asked.names.update(processes.list_gpu_holders(nvml.get_minor_number(gpu_uuid)))
    return asked.answer()


def list_partition_holders(nvml: Nvml, processes: Processes, live: LivePartition, deadline: Deadline) -> Holders:
    """The processes inside one partition, and whoever has its capability files open.

    A process of the GPU that NVML places in no partition counts too: it may be inside.
    """
    asked = _Asked()
    for listing in (nvml.get_compute_running_processes, nvml.get_graphics_running_processes):
        with asked.part(deadline):
            inside = [one for one in listing(live.gpu_uuid) if _is_inside(one, live)]
            asked.names.update(processes.get_command(one.pid) for one in inside)
    with asked.part(deadline):
        minor = nvml.get_minor_number(live.gpu_uuid)
        if live.ci_id is not None:
            nodes = processes.get_capability_nodes(minor, live.gi_id, live.ci_id)
            asked.names.update(processes.list_node_holders(nodes))
    return asked.answer()


def describe_gpu_holders(nvml: Nvml, processes: Processes, gpu_uuid: str, deadline: Deadline) -> str:
    """The processes on a GPU, in words."""
    return list_gpu_holders(nvml, processes, gpu_uuid, deadline).describe(deadline)


def describe_partition_holders(nvml: Nvml, processes: Processes, live: LivePartition, deadline: Deadline) -> str:
    """The processes that keep a partition from being destroyed, in words.

    Where none is inside, those with the GPU's device node open: a monitoring agent's handle holds every partition.
    """
    inside = list_partition_holders(nvml, processes, live, deadline)
    if inside.names:
        return inside.describe(deadline)
    inside_others: set[str] = set()
    beside: tuple[str, ...] = ()
    with contextlib.suppress(NvmlError, TryAgain):
        deadline.check("who uses the GPU")
        beside = processes.list_gpu_holders(nvml.get_minor_number(live.gpu_uuid))
        for listing in (nvml.get_compute_running_processes, nvml.get_graphics_running_processes):
            inside_others.update(processes.get_command(one.pid) for one in listing(live.gpu_uuid))
    agents = [name for name in beside if name not in inside_others]
    if agents:
        return f"a process with the GPU itself open, which is one of {', '.join(agents)}"
    return inside.describe(deadline)


def _is_inside(process: ProcessInfo, live: LivePartition) -> bool:
    return process.gi_id is None or process.gi_id == live.gi_id


class _Asked:
    """Names so far, and whether a list was not to be had."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._complete = True

    @contextlib.contextmanager
    def part(self, deadline: Deadline) -> Iterator[None]:
        try:
            deadline.check("who uses the GPU")
            yield
        except (NvmlError, TryAgain, StateError) as error:
            log.debug("who uses a GPU is not known in full: %s", error)
            self._complete = False

    def answer(self) -> Holders:
        return Holders(names=tuple(sorted(self.names)), complete=self._complete)
