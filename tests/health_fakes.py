"""Stand-ins for those whom the observers of health meet: NVML's event set, the keeper, the lookout."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from gpu_models import roster
from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.health.model import ALL_HEALTHY, NodeHealth
from tesela.core.health.observations import Observation
from tesela.core.model import Gpu
from tesela.core.roster import Roster
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import GpuInstanceInfo, NvmlEvent


def refuse(code: int, function: str = "nvml") -> NvmlError:
    return NvmlError(code, function, codes.TEXTS[code])


def xid(gpu_uuid: str, number: int, gi_id: int | None = None) -> NvmlEvent:
    return event(gpu_uuid, codes.EVENT_XID, data=number, gi_id=gi_id)


def event(gpu_uuid: str, event_type: int, data: int = 0, gi_id: int | None = None) -> NvmlEvent:
    return NvmlEvent(gpu_uuid=gpu_uuid, event_type=event_type, data=data, gi_id=gi_id, ci_id=None)


class FakeEventSet:
    """Delivers what its `nvml` holds, as long as none of its GPUs is lost there."""

    def __init__(self, nvml: FakeNvml, registrations: Sequence[tuple[str, int]]) -> None:
        self.nvml, self.registrations, self.closed = nvml, dict(registrations), False

    def wait(self, timeout_s: float) -> NvmlEvent | None:
        nvml = self.nvml
        with nvml.changed:
            nvml.waits += 1
            if error := nvml.wait_errors.popleft() if nvml.wait_errors else None:
                raise error
            if not nvml.lost.isdisjoint(self.registrations):
                raise refuse(codes.GPU_IS_LOST, "nvmlEventSetWait_v2")
            nvml.changed.wait_for(lambda: nvml.events, timeout_s)
            return nvml.events.popleft() if nvml.events else None

    def close(self) -> None:
        self.closed = True


class FakeNvml:
    """What the thread of events asks. `opened` are all sets ever opened, `unregistrable` those that NVML refuses.

    Of GPUs that `hang`, every question ends by the watchdog.
    """

    def __init__(self, *, types: int = codes.EVENT_ALL) -> None:
        self.changed = threading.Condition()
        self.types = types
        self.events: deque[NvmlEvent] = deque()
        self.wait_errors: deque[Exception] = deque()
        self.opened: list[FakeEventSet] = []
        self.lost: set[str] = set()
        self.hang: set[str] = set()
        self.unregistrable: set[str] = set()
        self.instances: dict[tuple[str, int], GpuInstanceInfo] = {}
        self.waits = self.tries = 0

    def tell(self, *events: NvmlEvent) -> None:
        with self.changed:
            self.events.extend(events)
            self.changed.notify_all()

    def get_supported_event_types(self, gpu_uuid: str) -> int:
        self._answer(gpu_uuid)
        return self.types

    def _answer(self, gpu_uuid: str) -> None:
        if gpu_uuid in self.hang:
            raise NvmlTimeout("it did not return")

    def get_memory_info(self, gpu_uuid: str) -> None:
        self._answer(gpu_uuid)
        if gpu_uuid in self.lost:
            raise refuse(codes.GPU_IS_LOST)

    def open_event_set(self, registrations: Sequence[tuple[str, int]]) -> FakeEventSet:
        self.tries += 1
        if any(uuid in self.unregistrable for uuid, _ in registrations):
            raise refuse(codes.UNKNOWN, "nvmlDeviceRegisterEvents")
        self.opened.append(FakeEventSet(self, registrations))
        return self.opened[-1]

    def get_gpu_instance_by_id(self, gpu_uuid: str, gi_id: int) -> GpuInstanceInfo:
        if (gpu_uuid, gi_id) not in self.instances:
            raise refuse(codes.NOT_FOUND)
        return self.instances[gpu_uuid, gi_id]


class FakeKeeper:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.health = self.since = ALL_HEALTHY

    def post(self, *observations: Observation) -> None:
        self.seen.extend(observations)

    def observe(self, *observations: Observation, since: NodeHealth = ALL_HEALTHY) -> tuple[()]:
        self.since = since
        self.seen.extend(observations)
        return ()

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.seen if isinstance(one, kind)]


class FakeLookout:
    """A roster that a test replaces."""

    def __init__(self, *gpus: Gpu) -> None:
        self.roster: Roster = roster(*gpus)


class FakeRecords:
    """`list` of the record store."""

    def __init__(self, records: Iterable[Any] = ()) -> None:
        self.records = tuple(records)

    def list(self) -> FakeRecords:
        return self
