"""`WatchedNvml`: no caller waits longer than a limit for NVML, whatever the library does (docs/invariants.md, 8).

Each GPU has a thread of its own that alone calls NVML for it, so a call that never returns holds up its own GPU only;
asking an index for its UUID has a thread per index, since the GPU is not known yet. A GPU whose call is overdue is
wedged: further calls on it fail at once until the stuck call has returned. NVML cannot be interrupted, so the thread
stays behind; what the late call did is for the next look at the GPU to find. A caller that waits in line is told so
too, and its call is then never made. Each event set has a thread that waits: one that does not return says nothing of
any GPU, but NVML is not shut down beside it. Each call that changes a GPU is made under a mark, which other processes
see, until it returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from tesela.core.errors import NvmlError, NvmlReleased, NvmlTimeout
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.event_set import CLOSE_TIMEOUT_S
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import (
    ComputeInstanceInfo,
    ComputeInstanceProfileInfo,
    EccMode,
    EventSet,
    FabricInfo,
    GpmSample,
    GpuInstanceInfo,
    GpuInstanceProfileInfo,
    MemoryInfo,
    MigMode,
    Nvml,
    PciInfo,
    ProcessInfo,
    RemappedRows,
)
from tesela.edge.nvml.watched_events import EVENT_SET, WatchedEventSet
from tesela.edge.nvml.worker import Worker
from tesela.edge.telemetry.port import SILENT, Telemetry

P = ParamSpec("P")
R = TypeVar("R")
Mark: TypeAlias = Callable[[str, str], AbstractContextManager[None]]
"""A GPU's UUID and an NVML function: a block that other processes see, for as long as it lasts."""
NODE: Final = ""
"""Key of the calls that concern no single GPU."""
WEDGED_GPUS_THAT_WEDGE_THE_NODE: Final = 2
SEVERAL: Final = "several NVML calls"
_MOST_INITS: Final = 16


class WatchedNvml:
    """`inner` under a watchdog: every call returns or raises NvmlTimeout within `timeout_s`, plus its turn in line.

    That turn is at most `worker.LIMITS_IN_LINE` times as long, and only while those before it get on.
    NvmlTimeout names the NVML function and the GPU. `telemetry` hears of every call that was made or put in line.
    `mark` is what a call that changes a GPU is made in, by the thread that makes it; errors of it are the call's.
    `shutdown` waits for calls inside NVML and refuses to run beside one that does not return.
    Between `release` and `reopen` NVML is closed and every call raises NvmlReleased.
    """

    def __init__(
        self, inner: Nvml, timeout_s: float, telemetry: Telemetry = SILENT, mark: Mark = lambda *_: nullcontext()
    ) -> None:
        self._inner = inner
        self._mark = mark
        self._telemetry = telemetry
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._workers: dict[str, Worker] = {}
        self._event_workers: list[Worker] = []
        self._uuids: dict[str, str] = {}
        self._on_change: Callable[[], None] = lambda: None
        self._on_mismatch: Callable[[NvmlError], None] = lambda _error: None
        self._released = ""
        self._inits = self._waiting = 0
        self._unsure = self._closing = False

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever a GPU or the node becomes wedged or is so no longer; it must not block."""
        self._on_change = on_change

    def listen_for_mismatch(self, on_mismatch: Callable[[NvmlError], None]) -> None:
        """Call `on_mismatch` when NVML says that it does not match the kernel module any more; it must not block."""
        self._on_mismatch = on_mismatch

    def wedged_gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs whose call has not returned in time, and still has not.

        A GPU whose UUID was never read stands by `name_unread`.
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
        with self._counted(NODE, FUNCTIONS["init"]) as worker:
            self._init(worker)

    def _init(self, worker: Worker) -> None:
        try:
            self._observe(worker, FUNCTIONS["init"], self._inner.init)
        except NvmlTimeout:
            self._unsure = True
            raise
        with self._lock:
            self._inits += 1

    @property
    def is_open(self) -> bool:
        """Whether NVML is initialized, and so holds the kernel module."""
        return self._inits > 0

    @property
    def may_be_open(self) -> bool:
        """As `is_open`, and where an init or a shutdown was not seen to its end: until `release` has returned."""
        return self._inits > 0 or self._unsure

    def release(self, sentence: str) -> None:
        """Close NVML, or never open it: every call raises NvmlReleased with `sentence` until `reopen`.

        NvmlTimeout: a call is still inside NVML. No further one begins; call again until it has returned.
        """
        with self._lock:
            self._released = sentence
            if not self.may_be_open:
                return
            self._unsure = True
        # Until NVML says that it is closed: an init or a shutdown that returned too late has done its work too.
        for _ in range(_MOST_INITS):
            try:
                self._shut_down()
            except NvmlError as error:
                if error.code != codes.UNINITIALIZED:
                    raise
                break
        with self._lock:
            self._inits, self._unsure = 0, False
        self._stop_waiters_of_the_last()

    def reopen(self) -> None:
        """nvmlInit, after `release` too; calls go through again. Errors as `init`: then they do not."""
        if not self._inits:
            with self._quiet:
                worker = self._worker(NODE)
            self._init(worker)
        self._released = ""

    def shutdown(self) -> None:
        """nvmlShutdown. NvmlTimeout: a call is still inside NVML, so it was not called."""
        if not (self._released and not self._inits):
            self._shut_down()

    def _shut_down(self) -> None:
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
            worker = self._worker(NODE)
        try:
            # Its event sets are closed first, and a wait may take its time to end.
            limit_s = self._timeout_s + CLOSE_TIMEOUT_S
            worker.run(FUNCTIONS["shutdown"], self._inner.shutdown, limit_s)
            with self._lock:
                self._inits = max(self._inits - 1, 0)
            self._stop_waiters_of_the_last()
        finally:
            self._closing = False

    def _stop_waiters_of_the_last(self) -> None:
        with self._lock:
            if self._inits:
                return
            waiters, self._event_workers = self._event_workers, []
        for waiter in waiters:
            waiter.stop()

    def get_driver_version(self) -> str:
        return self._watch(NODE, self._inner.get_driver_version)

    def get_cuda_driver_version(self) -> int:
        return self._watch(NODE, self._inner.get_cuda_driver_version)

    def get_device_count(self) -> int:
        return self._watch(NODE, self._inner.get_device_count)

    def get_uuid(self, index: int) -> str:
        key = name_unread(index)
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

    def get_mig_memory_info(self, gpu_uuid: str, mig_uuid: str) -> MemoryInfo:
        return self._watch(gpu_uuid, self._inner.get_mig_memory_info, gpu_uuid, mig_uuid)

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
        return self._change(self._inner.set_mig_mode, gpu_uuid, mode)

    def get_gpu_instance_profile_info(self, gpu_uuid: str, profile_enum: int) -> GpuInstanceProfileInfo:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_profile_info, gpu_uuid, profile_enum)

    def get_gpu_instance_possible_placements(self, gpu_uuid: str, profile_id: int) -> tuple[Placement, ...]:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_possible_placements, gpu_uuid, profile_id)

    def get_gpu_instance_remaining_capacity(self, gpu_uuid: str, profile_id: int) -> int:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_remaining_capacity, gpu_uuid, profile_id)

    def create_gpu_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> GpuInstanceInfo:
        return self._change(self._inner.create_gpu_instance, gpu_uuid, profile_id, placement)

    def get_gpu_instances(self, gpu_uuid: str, profile_id: int) -> tuple[GpuInstanceInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_gpu_instances, gpu_uuid, profile_id)

    def get_gpu_instance_by_id(self, gpu_uuid: str, gi_id: int) -> GpuInstanceInfo:
        return self._watch(gpu_uuid, self._inner.get_gpu_instance_by_id, gpu_uuid, gi_id)

    def destroy_gpu_instance(self, gpu_uuid: str, gi_id: int) -> None:
        self._change(self._inner.destroy_gpu_instance, gpu_uuid, gi_id)

    def get_compute_instance_profile_info(
        self, gpu_uuid: str, gi_id: int, profile_enum: int
    ) -> ComputeInstanceProfileInfo:
        return self._watch(gpu_uuid, self._inner.get_compute_instance_profile_info, gpu_uuid, gi_id, profile_enum)

    def create_compute_instance(self, gpu_uuid: str, gi_id: int, profile_id: int) -> ComputeInstanceInfo:
        return self._change(self._inner.create_compute_instance, gpu_uuid, gi_id, profile_id)

    def get_compute_instances(self, gpu_uuid: str, gi_id: int, profile_id: int) -> tuple[ComputeInstanceInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_compute_instances, gpu_uuid, gi_id, profile_id)

    def destroy_compute_instance(self, gpu_uuid: str, gi_id: int, ci_id: int) -> None:
        self._change(self._inner.destroy_compute_instance, gpu_uuid, gi_id, ci_id)

    def get_compute_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_compute_running_processes, gpu_uuid)

    def get_graphics_running_processes(self, gpu_uuid: str) -> tuple[ProcessInfo, ...]:
        return self._watch(gpu_uuid, self._inner.get_graphics_running_processes, gpu_uuid)

    def get_ecc_mode(self, gpu_uuid: str) -> EccMode:
        return self._watch(gpu_uuid, self._inner.get_ecc_mode, gpu_uuid)

    def get_total_ecc_errors(self, gpu_uuid: str, *, uncorrected: bool, aggregate: bool) -> int:
        query = self._inner.get_total_ecc_errors
        return self._watch(gpu_uuid, query, gpu_uuid, uncorrected=uncorrected, aggregate=aggregate)

    def get_remapped_rows(self, gpu_uuid: str) -> RemappedRows:
        return self._watch(gpu_uuid, self._inner.get_remapped_rows, gpu_uuid)

    def get_supported_event_types(self, gpu_uuid: str) -> int:
        return self._watch(gpu_uuid, self._inner.get_supported_event_types, gpu_uuid)

    def get_gpm_support(self, gpu_uuid: str) -> bool:
        return self._watch(gpu_uuid, self._inner.get_gpm_support, gpu_uuid)

    def get_gpm_sample(self, gpu_uuid: str) -> GpmSample:
        return self._watch(gpu_uuid, self._inner.get_gpm_sample, gpu_uuid)

    def get_mig_gpm_sample(self, gpu_uuid: str, gi_id: int) -> GpmSample:
        return self._watch(gpu_uuid, self._inner.get_mig_gpm_sample, gpu_uuid, gi_id)

    def free_gpm_sample(self, sample: GpmSample) -> None:
        self._watch(sample.gpu_uuid, self._inner.free_gpm_sample, sample)

    def get_gpm_metrics(
        self, before: GpmSample, after: GpmSample, metric_ids: Sequence[int]
    ) -> tuple[float | None, ...]:
        return self._watch(after.gpu_uuid, self._inner.get_gpm_metrics, before, after, metric_ids)

    def open_event_set(self, registrations: Sequence[tuple[str, int]]) -> EventSet:
        """As Nvml.open_event_set; a call that does not return is held against the GPU, if it is about one only."""
        uuids = {gpu_uuid for gpu_uuid, _ in registrations}
        key = uuids.pop() if len(uuids) == 1 else NODE
        function = FUNCTIONS["open_event_set"]
        with self._counted(key, function) as opener:  # until its thread is known, else a shutdown would forget it
            inner = opener.run(function, partial(self._inner.open_event_set, registrations), self._timeout_s)
            worker = Worker("events", EVENT_SET, self._notify)
            with self._lock:
                self._event_workers = [*(known for known in self._event_workers if not known.stopped), worker]
        return WatchedEventSet(inner, worker, self._timeout_s)

    def together(self, gpu_uuid: str, work: Callable[[], R]) -> R:
        """What `work` returns; the calls on this GPU that it makes through this object share one change of threads.

        Each still has the whole limit for itself, and NvmlTimeout names the one that did not return. After that one, or
        once `shutdown` has begun, further calls of `work` are refused. It must make none on another GPU, and take no
        lock.
        """
        with self._counted(gpu_uuid, SEVERAL) as worker:
            return worker.run(SEVERAL, work, self._timeout_s)

    def _change(self, call: Callable[Concatenate[str, P], R], gpu_uuid: str, *args: P.args, **kwargs: P.kwargs) -> R:
        """A call that changes the GPU, under its mark: not made where its caller gave up before others could see it."""
        function = FUNCTIONS[call.__name__]

        def change(worker: Worker) -> R:
            with self._mark(gpu_uuid, function):
                worker.check_awaited(function)
                return call(gpu_uuid, *args, **kwargs)

        return self._run(gpu_uuid, function, change)

    def _watch(self, key: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(key, FUNCTIONS[call.__name__], lambda _worker: call(*args, **kwargs))

    def _run(self, key: str, function: str, call: Callable[[Worker], R]) -> R:
        with self._counted(key, function) as worker:
            return self._observe(worker, function, partial(call, worker))

    def _observe(self, worker: Worker, function: str, call: Callable[[], R]) -> R:
        code: int | None = None
        began_s = time.perf_counter()
        try:
            result = worker.run(function, call, self._timeout_s)
            code = codes.SUCCESS
            return result
        except NvmlError as error:
            code = error.code
            raise
        finally:
            self._telemetry.observe_nvml_call(function, code, time.perf_counter() - began_s)

    @contextmanager
    def _counted(self, key: str, function: str) -> Iterator[Worker]:
        """The worker of `key`, while `shutdown` waits. NvmlError: it is being shut down. NvmlReleased: it is closed."""
        with self._quiet:
            if self._released:
                raise NvmlReleased(self._released)
            worker = self._worker(key)
            if self._closing:
                raise NvmlError(codes.UNINITIALIZED, function, "NVML is being shut down")
            self._waiting += 1
        try:
            yield worker
        except NvmlError as error:
            if error.code == codes.LIB_RM_VERSION_MISMATCH:
                self._on_mismatch(error)
            raise
        finally:
            with self._quiet:
                self._waiting -= 1
                if self._closing:
                    self._quiet.notify_all()

    def _worker(self, key: str) -> Worker:
        worker = self._workers.get(key)
        if worker is None:
            where = f"GPU {key}" if key else "the node"
            worker = self._workers[key] = Worker(key or "node", where, self._notify)
        return worker

    def _notify(self) -> None:
        self._on_change()  # whoever listens by then, not when the worker was made


def name_unread(index: int) -> str:
    """How a GPU is named whose UUID this process has not read yet."""
    return f"at index {index}"


def together(nvml: Nvml, gpu_uuid: str, work: Callable[[], R]) -> R:
    """`work`, whose calls of `nvml` on one GPU go together under a watchdog; any other backend just makes them."""
    return nvml.together(gpu_uuid, work) if isinstance(nvml, WatchedNvml) else work()
