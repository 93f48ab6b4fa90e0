"""What stands behind the driver's port and around its sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polling import until
from tesela.core.errors import TeselaError
from tesela.core.model import ClaimRef, PreparedDevice
from tesela.edge.kubelet.client import HealthWatch
from tesela.edge.kubelet.port import DeviceHealth, PrepareResult


def claim(uid: str, name: str = "", namespace: str = "team") -> ClaimRef:
    return ClaimRef(namespace=namespace, name=name or f"claim-{uid}", uid=uid)


def device(name: str = "gpu-0", **changes) -> PreparedDevice:
    fields = {
        "request_names": ("gpu",),
        "pool_name": "node-a",
        "device_name": name,
        "cdi_device_ids": (f"k8s.gpu.nvidia.com/claim={name}",),
    }
    return PreparedDevice(**(fields | changes))


@dataclass
class FakeNodeService:
    """Answers from `devices` and `errors`; `entered` counts calls that wait at `gate`."""

    devices: dict[str, PrepareResult] = field(default_factory=dict)
    errors: dict[str, str | None] = field(default_factory=dict)
    raises: Exception | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    deadlines_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def prepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, PrepareResult]:
        self._note("prepare", claims, deadline_s)
        return self.devices

    def unprepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, str | None]:
        self._note("unprepare", claims, deadline_s)
        return self.errors

    def _note(self, verb: str, claims: Sequence[ClaimRef], deadline_s: float) -> None:
        self.calls.append((verb, tuple(claim.uid for claim in claims)))
        self.deadlines_s.append(deadline_s)
        self.entered.release()
        assert self.gate.wait(30)
        if self.raises is not None:
            raise self.raises


@dataclass
class FakeHealth:
    """Reports `devices`; `tell` changes them. `asked` counts the reports, `problem` fails them."""

    devices: tuple[DeviceHealth, ...] = (DeviceHealth(pool="node-a", device="gpu-0", healthy=True),)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    asked: int = 0
    problem: Exception | None = None

    def get_report(self) -> tuple[DeviceHealth, ...]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return self.devices

    def listen(self, on_change: Callable[[], None]) -> None:
        self.listeners.append(on_change)

    def tell(self, *devices: DeviceHealth) -> None:
        self.devices = devices
        for on_change in self.listeners:
            on_change()


class Watcher:
    """Reads one stream on a thread; `reports` are what came, `ended` is set at its end, `problem` says why."""

    def __init__(self, watch: HealthWatch) -> None:
        self.reports: list[tuple[DeviceHealth, ...]] = []
        self.arrived_s: list[float] = []
        self.holds_s: set[int] = set()
        self.ended = threading.Event()
        self.problem: Exception | None = None
        self._watch = watch
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for report in self._watch:
                self.arrived_s.append(time.monotonic())
                self.holds_s |= {holds_s for _, holds_s in report}
                self.reports.append(tuple(device for device, _ in report))
        except TeselaError as error:
            self.problem = error
        finally:
            self.ended.set()

    def wait_for(self, count: int) -> list[tuple[DeviceHealth, ...]]:
        assert until(lambda: len(self.reports) >= count), self.reports
        return self.reports

    def close(self) -> None:
        self._watch.cancel()
        self._thread.join(10)


@dataclass
class Kubelet:
    """The kubelet's two folders, and what tells how registrations went."""

    root: Path
    registered: list[tuple[bool, str]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    @property
    def plugins_dir(self) -> Path:
        return self.root / "plugins"

    @property
    def registry_dir(self) -> Path:
        return self.root / "plugins_registry"

    def sockets(self) -> set[str]:
        return {path.name for folder in self.root.iterdir() for path in folder.rglob("*") if path.is_socket()}
