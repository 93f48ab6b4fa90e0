"""`WatchedNvml`: no caller waits longer than a limit for NVML, whatever the library does (docs/invariants.md, 8).

Each GPU has a thread of its own that alone calls NVML for it, so a call that never returns holds up its own GPU only;
asking an index for its UUID has a thread per index, since the GPU is not known yet. A GPU whose call is overdue is
wedged: further calls on it fail at once until the stuck call has returned. NVML cannot be interrupted, so the thread
stays behind; what the late call did is for the next look at the GPU to find. A caller that waits in line is told so
too, and its call is then never made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Generic, ParamSpec, TypeVar

from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import (
    ComputeInstanceInfo,
    ComputeInstanceProfileInfo,
    FabricInfo,
    GpuInstanceInfo,
    GpuInstanceProfileInfo,
    MemoryInfo,
    MigMode,
    Nvml,
    PciInfo,
    ProcessInfo,
)

P = ParamSpec("P")
R = TypeVar("R")
NODE: Final = ""
"""Key of the calls that concern no single GPU."""
WEDGED_GPUS_THAT_WEDGE_THE_NODE: Final = 2
_LOG: Final = logging.getLogger(__name__)


class _Job(Generic[R]):
    """One call on its way through a worker. `started` and `cancelled` exclude each other, under the worker's lock."""

    __slots__ = ("cancelled", "done", "error", "finished", "function", "result", "run", "started", "started_at")

    def __init__(self, function: str, run: Callable[[], R]) -> None:
        self.function = function
        self.run = run
        # A lock that is held until the call is over: cheaper to make and to wait for than an Event.
        self.done = threading.Lock()
        self.done.acquire()
        self.started = self.finished = False
        self.started_at = 0.0
        self.cancelled = False
        self.result: R | None = None
        self.error: BaseException | None = None


class _Worker:
    """The thread that calls NVML for one key. `overdue` is the function whose caller gave up, while it still runs."""

    def __init__(self, key: str, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.lock = threading.Lock()
        self.overdue: str | None = None
        self._key = key
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        threading.Thread(target=self._work, name=f"nvml-{key or 'node'}", daemon=True).start()

    def put(self, job: _Job[Any]) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            with self.lock:
                if job.cancelled:
                    continue
                job.started, job.started_at = True, time.monotonic()
            try:
                job.result = job.run()
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                job.error = error
            with self.lock:
                job.finished = True
                late, self.overdue = self.overdue, None
            if late is not None:
                took_s = time.monotonic() - job.started_at
                outcome = f"failed: {job.error}" if job.error is not None else "succeeded"
                _LOG.warning("%s on %s returned after %.1f s and %s", late, self._key or "node", took_s, outcome)
                self._on_change()
            job.done.release()
            del job  # or the last result stays alive while the thread waits


class WatchedNvml:
    """`inner` under a watchdog: every call returns or raises NvmlTimeout within `timeout_s` (plus its turn in line).

    NvmlTimeout names the NVML function and the GPU. `shutdown` waits for calls inside NVML and refuses to run beside
    one that does not return.
    """

    def __init__(self, inner: Nvml, timeout_s: float) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._workers: dict[str, _Worker] = {}
        self._uuids: dict[str, str] = {}
        self._on_change: Callable[[], None] = lambda: None
        self._waiting = 0
        self._closing = False

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever a GPU or the node becomes wedged or is so no longer; it must not block."""
        self._on_change = on_change

    def wedged_gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs whose call has not returned in time, and still has not.

        A GPU whose UUID was never read stands as `at index 3`.
        """
        stuck = [key for key, worker in list(self._workers.items()) if key != NODE and worker.overdue]
        return frozenset(self._uuids.get(key, key) for key in stuck)

    @property
    def wedged_node(self) -> bool:
        """Whether NVML as a whole is suspect: two GPUs are wedged, or a call that concerns no single GPU is."""
        node = self._workers.get(NODE)
        stuck = node is not None and node.overdue is not None
        return stuck or len(self.wedged_gpus()) >= WEDGED_GPUS_THAT_WEDGE_THE_NODE

    def init(self) -> None:
        self._watch(NODE, self._inner.init)

    def shutdown(self) -> None:
        """nvmlShutdown. NvmlTimeout: a call is still inside NVML, so it was not called."""
        with self._quiet:
            self._closing = True
            try:
                idle = self._quiet.wait_for(lambda: not self._waiting, self._timeout_s)
                stuck = sorted(key or "node" for key, worker in self._workers.items() if worker.overdue)
                if stuck or not idle:
                    inside = ", ".join(stuck) or "a GPU"
                    raise NvmlTimeout(f"nvmlShutdown: not called, a call on {inside} is still inside NVML")
            except NvmlTimeout:
                self._closing = False
                raise
        try:
            self._run(NODE, self._worker(NODE), self._inner.shutdown)
        finally:
            self._closing = False

    def get_driver_version(self) -> str:
        return self._watch(NODE, self._inner.get_driver_version)

    def get_cuda_driver_version(self) -> int:
        return self._watch(NODE, self._inner.get_cuda_driver_version)

    def get_device_count(self) -> int:
        return self._watch(NODE, self._inner.get_device_count)

    def get_uuid(self, index: int) -> str:
        key = f"at index {index}"
        uuid = self._uuids[key] = self._watch(key, self._inner.get_uuid, index)
        return uuid

    def get_index(self, gpu_uuid: str) -> int:
        return self._watch(gpu_uuid, self._inner.get_index, gpu_uuid)

    def get_minor_number(self, gpu_uuid: str) -> int:
        return self._watch(gpu_uuid, self._inner.get_minor_number, gpu_uuid)

    def get_name(self, gpu_uuid: str) -> str:
        return self._watch(gpu_uuid, self._inner.get_name, gpu_uuid)

    def get_brand(self, gpu_uuid: str) -> int:
        return self._watch(gpu_uuid, self._inner.get_brand, gpu_uuid)

    def get_architecture(self, gpu_uuid: str) -> int:
        return self._watch(gpu_uuid, self._inner.get_architecture, gpu_uuid)

    def get_cuda_compute_capability(self, gpu_uuid: str) -> tuple[int, int]:
        return self._watch(gpu_uuid, self._inner.get_cuda_compute_capability, gpu_uuid)

    def get_pci_info(self, gpu_uuid: str) -> PciInfo:
        return self._watch(gpu_uuid, self._inner.get_pci_info, gpu_uuid)

    def get_memory_info(self, gpu_uuid: str) -> MemoryInfo:
        return self._watch(gpu_uuid, self._inner.get_memory_info, gpu_uuid)

    def get_addressing_mode(self, gpu_uuid: str) -> str:
        return self._watch(gpu_uuid, self._inner.get_addressing_mode, gpu_uuid)

    def get_virtualization_mode(self, gpu_uuid: str) -> int:
        return self._watch(gpu_uuid, self._inner.get_virtualization_mode, gpu_uuid)

    def get_fabric_info(self, gpu_uuid: str) -> FabricInfo:
        return self._watch(gpu_uuid, self._inner.get_fabric_info, gpu_uuid)

    def get_field_values(self, gpu_uuid: str, field_ids: Sequence[int]) -> tuple[int | None, ...]:
        return self._watch(gpu_uuid, self._inner.get_field_values, gpu_uuid, field_ids)

    def get_mig_mode(self, gpu_uuid: str) -> MigMode:
        return self._watch(gpu_uuid, self._inner.get_mig_mode, gpu_uuid)

    def set_mig_mode(self, gpu_uuid: str, mode: int) -> int:
        return self._watch(gpu_uuid, self._inner.set_mig_mode, gpu_uuid, mode)

    def get_gpu_instance_profile_info(self, gpu_uuid: str, profile_enum: int) -> GpuInstanceProfileInfo:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_profile_info, gpu_uuid, profile_enum)

    def get_gpu_instance_possible_placements(self, gpu_uuid: str, profile_id: int) -> tuple[Placement, ...]:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_possible_placements, gpu_uuid, profile_id)

    def get_gpu_instance_remaining_capacity(self, gpu_uuid: str, profile_id: int) -> int:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_remaining_capacity, gpu_uuid, profile_id)

    def create_gpu_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> GpuInstanceInfo:
        return self._watch(gpu_uuid, self._inner.create_gpu_instance, gpu_uuid, profile_id, placement)

    def get_gpu_instances(self, gpu_uuid: str, profile_id: int) -> tuple[GpuInstanceInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_gpu_instances, gpu_uuid, profile_id)

    def get_gpu_instance_by_id(self, gpu_uuid: str, gi_id: int) -> GpuInstanceInfo:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_by_id, gpu_uuid, gi_id)

    def destroy_gpu_instance(self, gpu_uuid: str, gi_id: int) -> None:
        self._watch(gpu_uuid, self._inner.destroy_gpu_instance, gpu_uuid, gi_id)

    def get_compute_instance_profile_info(
        self, gpu_uuid: str, gi_id: int, profile_enum: int
    ) -> ComputeInstanceProfileInfo:
        return self._watch(gpu_uuid, self._inner.get_compute_instance_profile_info, gpu_uuid, gi_id, profile_enum)

    def create_compute_instance(self, gpu_uuid: str, gi_id: int, profile_id: int) -> ComputeInstanceInfo:
        return self._watch(gpu_uuid, self._inner.create_compute_instance, gpu_uuid, gi_id, profile_id)

    def get_compute_instances(self, gpu_uuid: str, gi_id: int, profile_id: int) -> tuple[ComputeInstanceInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_compute_instances, gpu_uuid, gi_id, profile_id)

    def destroy_compute_instance(self, gpu_uuid: str, gi_id: int, ci_id: int) -> None:
        self._watch(gpu_uuid, self._inner.destroy_compute_instance, gpu_uuid, gi_id, ci_id)

    def get_compute_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_compute_running_processes, gpu_uuid)

    def get_graphics_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_graphics_running_processes, gpu_uuid)

    def _watch(self, key: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._quiet:
            if self._closing:
                raise NvmlError(codes.UNINITIALIZED, FUNCTIONS[call.__name__], "NVML is being shut down")
            self._waiting += 1
            worker = self._worker(key)
        try:
            return self._run(key, worker, call, *args, **kwargs)
        finally:
            with self._quiet:
                self._waiting -= 1
                if self._closing:
                    self._quiet.notify_all()

    def _run(self, key: str, worker: _Worker, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        function, overdue = FUNCTIONS[call.__name__], worker.overdue
        if overdue is not None:
            raise NvmlTimeout(self._sentence(function, key, f"not tried, {overdue} has not returned yet"))
        job = _Job(function, lambda: call(*args, **kwargs))
        worker.put(job)
        if not job.done.acquire(timeout=self._timeout_s):
            self._give_up(worker, job, key)
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]  # set by the worker before `done`; None only if R is None

    def _worker(self, key: str) -> _Worker:
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = _Worker(key, self._notify)
        return worker

    def _notify(self) -> None:
        self._on_change()  # whoever listens by then, not when the worker was made

    def _give_up(self, worker: _Worker, job: _Job[Any], key: str) -> None:
        """Raises NvmlTimeout, unless the call has just come back."""
        with worker.lock:
            if job.finished:
                return
            if not job.started:
                job.cancelled = True
                raise NvmlTimeout(self._sentence(job.function, key, "not tried, an earlier call has not returned yet"))
            remaining_s = job.started_at + self._timeout_s - time.monotonic()
            if remaining_s <= 0:
                worker.overdue = job.function
                self._on_change()
                raise NvmlTimeout(self._sentence(job.function, key, f"did not return within {self._timeout_s:g} s"))
        # It waited in line first: the call itself still has time.
        if not job.done.acquire(timeout=remaining_s):
            self._give_up(worker, job, key)

    def _sentence(self, function: str, key: str, what: str) -> str:
        where = f"GPU {key}" if key else "the node"
        return f"{function} on {where}: {what}; if it lasts, look for Xid errors in the node's kernel log"
