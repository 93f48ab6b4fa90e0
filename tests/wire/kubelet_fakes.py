"""What stands behind the driver's port and around its sockets."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tesela.core.model import ClaimRef, PreparedDevice
from tesela.edge.kubelet.port import PrepareResult


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
