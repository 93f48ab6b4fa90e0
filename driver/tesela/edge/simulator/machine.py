"""A machine of simulated GPUs: who may touch which GPU when, and what an operator can do to it.

Each GPU has its own lock, so calls on different GPUs run in parallel. What befalls a call on its way here is in
`call_path`, MIG's rules live in `gpu`, NVML's grain in `nvml`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar

from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import FabricInfo
from tesela.edge.simulator.assembly import assemble_gpu
from tesela.edge.simulator.call_path import CallPath
from tesela.edge.simulator.events import EventLog
from tesela.edge.simulator.faults import Misbehaviour
from tesela.edge.simulator.gpu import Process, SimulatedGpu
from tesela.edge.simulator.health import GpuHealth
from tesela.edge.simulator.models import MAX_GPU_INSTANCES
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.spec import MAX_GPUS, MachineSpec, check_machine_spec, parse_machine_spec
from tesela.edge.simulator.state import GpuState, MachineState, gpu_state
from tesela.edge.simulator.telemetry import advance_meters

R = TypeVar("R")
RestartHook: TypeAlias = Callable[[MachineState], None]
"""Told of every reboot and driver reload, when all GPUs are back."""
Clock: TypeAlias = Callable[[], float]
ChangeHook: TypeAlias = Callable[[GpuState], None]
"""Told of every change of a GPU, under that GPU's lock, before the call returns."""


class Machine(CallPath):
    """The state behind `SimulatedNvml`. GPUs are named by UUID or by NVML index as text."""

    def __init__(self, spec: MachineSpec, *, clock: Clock = time.monotonic, wall_clock: Clock = time.time) -> None:
        super().__init__()
        check_machine_spec(spec)
        self.spec = spec
        self.clock = clock
        self.wall_clock = wall_clock
        self.on_change: list[ChangeHook] = []
        self.on_restart: list[RestartHook] = []
        self.shift_minors = spec.shift_minors
        """Whether a MIG toggle or a reboot moves minors, as it does on some systems."""
        self.events = EventLog()
        self._boot_id = str(uuid.uuid4())
        self._driver_loads = 1
        self._minors = threading.Lock()
        self._gpus = {gpu.uuid: gpu for gpu in (assemble_gpu(spec, i) for i in range(len(spec.gpus)))}
        self._locks = {gpu_uuid: threading.RLock() for gpu_uuid in self._gpus}
        for gpu in self._gpus.values():
            advance_meters(gpu, clock())

    def with_gpu(self, gpu_uuid: str, rule: Callable[[SimulatedGpu], R], *, changes: bool = False) -> R:
        """Applies `rule` under the GPU's lock. Refused: NOT_FOUND for a GPU that NVML does not know, GPU_IS_LOST."""
        gpu = self._gpus.get(gpu_uuid)
        if gpu is None:
            raise Refused(codes.NOT_FOUND)
        with self._locks[gpu_uuid]:
            if gpu.absent:
                raise Refused(codes.NOT_FOUND)
            if gpu.lost:
                raise Refused(codes.GPU_IS_LOST)
            result = rule(gpu)
            if changes:
                self._changed(gpu)
            return result

    def visible_uuids(self) -> tuple[str, ...]:
        """The GPUs that NVML counts, in index order: PCI order without the absent ones."""
        return tuple(gpu.uuid for gpu in self._gpus.values() if not gpu.absent)

    def visible_gpus(self) -> tuple[SimulatedGpu, ...]:
        """The GPUs that NVML counts; without `with_gpu` only what never changes of them may be read."""
        return tuple(gpu for gpu in self._gpus.values() if not gpu.absent)

    def set_mig_mode(self, gpu: SimulatedGpu, mode: int, forced_status: int | None = None) -> int:
        """The rule of nvmlDeviceSetMigMode, with the minor moving where the machine is told to do that."""
        before = gpu.mig
        status = gpu.set_mig_mode(mode, forced_status)
        if gpu.mig != before:
            self._toggled(gpu)
        return status

    def register_events(self, gpu: SimulatedGpu, mask: int) -> int:
        """The rule of nvmlDeviceRegisterEvents: the number of the last event, for a wait to begin after.

        Refused: INVALID_ARGUMENT for a bit that NVML lacks, NOT_SUPPORTED for a type that this GPU lacks.
        """
        if mask & ~codes.EVENT_ALL:
            raise Refused(codes.INVALID_ARGUMENT)
        if mask & ~gpu.health.supported_event_types(gpu.model):
            raise Refused(codes.NOT_SUPPORTED)
        return self.events.cursor

    # What a simulator's user does

    def snapshot(self) -> MachineState:
        """The whole machine; each GPU is consistent in itself."""
        return MachineState(
            boot_id=self._boot_id,
            driver_version=self.spec.driver_version,
            driver_loads=self._driver_loads,
            calls=self.list_calls(),
            gpus=tuple(self.gpu(gpu_uuid) for gpu_uuid in self._gpus),
        )

    def gpu(self, name: str) -> GpuState:
        """The state of one GPU. DocumentError: no such GPU."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            return self._state(gpu)

    def inject(self, what: Misbehaviour) -> None:
        """Arms a fault, a latency or a hang. DocumentError: unknown function or GPU."""
        self.arm(what if what.gpu is None else replace(what, gpu=self._find(what.gpu).uuid))

    def release(self) -> None:
        """Forgets all faults, latencies and hangs, lets every hung call go on, and ends every wait for events."""
        super().release()
        self.events.release()

    def add_process(self, name: str, process: Process) -> None:
        """Opens a context on the GPU or one of its instances.

        DocumentError: the GPU is lost, the instance does not exist, or it has less memory than the process wants.
        """
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            if gpu.lost:
                raise DocumentError("gpu", f"{gpu.uuid} has fallen off the bus; `tesela sim reset` brings it back")
            _check_instance(gpu, process.gi_id, process.ci_id)
            _check_memory(gpu, process)
            gpu.processes.append(process)
            self._changed(gpu)

    def remove_process(self, name: str, pid: int) -> None:
        """Ends every context of `pid` on the GPU. DocumentError: it has none."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            left = [p for p in gpu.processes if p.pid != pid]
            if len(left) == len(gpu.processes):
                raise DocumentError("pid", f"process {pid} has no context on GPU {gpu.uuid}")
            gpu.processes[:] = left
            self._changed(gpu)

    def end_process(self, name: str, pid: int) -> None:
        """As `remove_process`, of a process that ended by itself: it may be off the GPU already."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            if any(p.pid == pid for p in gpu.processes):
                self.remove_process(name, pid)

    def lose(self, name: str, *, absent: bool = False) -> None:
        """The GPU falls off the bus: NVML answers GPU_IS_LOST, or, once `absent`, does not know it any more."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            if not gpu.lost:
                self.events.record(gpu.uuid, codes.EVENT_XID, data=codes.XID_FALLEN_OFF_THE_BUS)
                self.events.record(gpu.uuid, codes.EVENT_GPU_UNAVAILABLE)
            gpu.forget_instances()
            gpu.lost, gpu.absent = True, absent
            self._changed(gpu)

    def reset(self, name: str, *, force: bool = False) -> None:
        """Resets a GPU, also a lost one: instances go, the pending mode holds. DocumentError: a process uses it."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            if gpu.processes and not force:
                pids = ", ".join(str(p.pid) for p in gpu.processes)
                raise DocumentError("gpu", f"{gpu.uuid} is in use by {pids}; end them first, or force the reset")
            toggled, action = gpu.mig != gpu.pending, gpu.health.recovery_action
            gpu.reset()
            if toggled:
                self._toggled(gpu)
            if gpu.health.recovery_action != action:
                self._tell_recovery_action(gpu)
            self._changed(gpu)

    def reboot(self) -> None:
        """The node restarts: new boot id, no instances, no processes, lost GPUs back, MIG off except on Ampere."""
        self._boot_id = str(uuid.uuid4())
        for gpu in self._gpus.values():
            with self._locks[gpu.uuid]:
                gpu.health.reboot()
        self.reload_driver()

    def reload_driver(self, driver_version: str | None = None) -> None:
        """The kernel module is unloaded and loaded: as a reboot, but boot id and the node's recovery actions stay.

        `driver_version` is that of the new module, where it is another. DocumentError: it is no version of a driver.
        """
        if driver_version is not None:
            self.spec = check_machine_spec(replace(self.spec, driver_version=driver_version))
        self._driver_loads += 1
        count = len(self._gpus)
        for index, gpu in enumerate(self._gpus.values()):
            with self._locks[gpu.uuid]:
                gpu.restart()
                gpu.minor = (index + self._driver_loads - 1) % count if self.shift_minors else index
                self._changed(gpu)
        for hook in self.on_restart:
            hook(self.snapshot())

    def force_gi_id(self, name: str, gi_id: int) -> None:
        """The GPU's next GPU instance gets `gi_id`. DocumentError: outside NVML's range, or in use."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            if not 0 <= gi_id < MAX_GPU_INSTANCES or gi_id in gpu.instances or gi_id in gpu.next_gi_ids:
                raise DocumentError("gi", f"{gi_id} is outside 0..{MAX_GPU_INSTANCES - 1} or in use")
            gpu.next_gi_ids.append(gi_id)

    def set_fabric(self, name: str, fabric: FabricInfo | None) -> None:
        """What nvmlDeviceGetGpuFabricInfoV answers from now on; None: NOT_SUPPORTED."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            gpu.fabric = fabric

    def set_field(self, name: str, field_id: int, value: int | None) -> None:
        """What nvmlDeviceGetFieldValues answers for one field; None: that field is not supported."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            gpu.fields[field_id] = value

    def raise_xid(self, name: str, xid: int, *, gi_id: int | None = None, ci_id: int | None = None) -> None:
        """The driver reports an Xid, attributed to an instance or to none. DocumentError: no such instance."""
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            _check_instance(gpu, gi_id, ci_id)
            self.events.record(gpu.uuid, codes.EVENT_XID, data=xid, gi_id=gi_id, ci_id=ci_id)

    def change_health(self, name: str, change: Callable[[GpuHealth], int]) -> None:
        """Applies `change` to a GPU's health and records the events whose types it returns.

        A recovery action that changes is recorded too, with the Xid that drivers report beside it.
        """
        gpu = self._find(name)
        with self._locks[gpu.uuid]:
            action = gpu.health.recovery_action
            types = change(gpu.health)
            for event_type in (codes.EVENT_SINGLE_BIT_ECC, codes.EVENT_DOUBLE_BIT_ECC):
                if types & event_type:
                    self.events.record(gpu.uuid, event_type)
            if gpu.health.recovery_action != action:
                self._tell_recovery_action(gpu)
            self._changed(gpu)

    # Inside

    def _find(self, name: str) -> SimulatedGpu:
        if name.isdecimal() and int(name) < len(self._gpus):
            return list(self._gpus.values())[int(name)]
        if name not in self._gpus:
            raise DocumentError("gpu", f"no GPU {name!r}; give a UUID or an index 0..{len(self._gpus) - 1}")
        return self._gpus[name]

    def _state(self, gpu: SimulatedGpu) -> GpuState:
        visible = self.visible_uuids()
        return gpu_state(gpu, visible.index(gpu.uuid) if gpu.uuid in visible else None)

    def _toggled(self, gpu: SimulatedGpu) -> None:
        self.events.record(gpu.uuid, codes.EVENT_MIG_CONFIG_CHANGE)
        if self.shift_minors:
            self._move_minor(gpu)

    def _tell_recovery_action(self, gpu: SimulatedGpu) -> None:
        self.events.record(gpu.uuid, codes.EVENT_XID, data=codes.XID_RECOVERY_ACTION_CHANGED)
        self.events.record(gpu.uuid, codes.EVENT_RECOVERY_ACTION)

    def _changed(self, gpu: SimulatedGpu) -> None:
        advance_meters(gpu, self.clock())
        if self.on_change:
            state = self._state(gpu)
            for hook in self.on_change:
                hook(state)

    def _move_minor(self, gpu: SimulatedGpu) -> None:
        with self._minors:
            taken = {other.minor for other in self._gpus.values()}
            gpu.minor = next((m for m in range(MAX_GPUS) if m not in taken), gpu.minor)


def build_machine(text: str) -> Machine:
    """The machine that `text` describes (`spec` has the grammar). DocumentError: nobody could build it."""
    return Machine(parse_machine_spec(text))


def _check_memory(gpu: SimulatedGpu, process: Process) -> None:
    instance = gpu.instances.get(process.gi_id) if process.gi_id is not None else None
    total, reserved, used = gpu.memory_use() if instance is None else gpu.instance_memory_use(instance)
    free = total - reserved - used
    if process.memory_bytes > free:
        where = f"GPU {gpu.uuid}" if instance is None else f"GPU instance {instance.gi_id}"
        wanted = process.memory_bytes >> 20
        raise DocumentError("memory_mib", f"{wanted} MiB do not fit: {where} has {free >> 20} MiB free")


def _check_instance(gpu: SimulatedGpu, gi_id: int | None, ci_id: int | None) -> None:
    instance = gpu.instances.get(gi_id) if gi_id is not None else None
    if gi_id is not None and instance is None:
        raise DocumentError("gi", f"GPU {gpu.uuid} has no GPU instance {gi_id}")
    if ci_id is not None and instance is None:
        raise DocumentError("ci", "is an id within a GPU instance; name that too")
    if ci_id is not None and instance is not None and ci_id not in instance.compute:
        raise DocumentError("ci", f"GPU instance {gi_id} of GPU {gpu.uuid} has no compute instance {ci_id}")
