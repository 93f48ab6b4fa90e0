"""A running driver over simulated GPUs, and what its health shows outside: taints, attributes, and the file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from node_program import make_program, open_watched, start
from polling import until
from tesela.core.health.model import Finding
from tesela.core.model import Refusal
from tesela.core.record import ClaimRecord
from tesela.edge.kube.port import RESOURCE_SLICES
from tesela.edge.simulator.admin import perform_admin
from tesela.edge.store.health import HealthStore
from tesela.plugin.main import Plugin
from tesela.plugin.service import ClaimService

PREFIX = "gpu.nvidia.com/"


class Running:
    """The node program in this process. `restart` is a new process over the same files and GPUs."""

    def __init__(
        self, folder: Path, gpus: str, *, nvml_timeout_s: float = 5, pod_resources: Path | None = None
    ) -> None:
        self.world, config = make_program(folder, gpus, nvml_timeout_s=nvml_timeout_s)
        self.config = dataclasses.replace(config, pod_resources=pod_resources)
        self.machine = self.world.machine
        self.start()

    def start(self) -> None:
        self.begin()
        assert until(lambda: self.plugin.observers.events.is_open)

    def begin(self) -> None:
        """Until it has published; whoever has asked for NVML may have it closed again by then."""
        self.nvml = open_watched(self.world, self.config)
        self.plugin = start(Plugin(self.config, self.world.kube, self.nvml))

    def stop(self) -> None:
        assert self.plugin.stop() == 0

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.machine.release()
        self.stop()
        self.world.kube.close()

    def sim(self, operation: str, **fields: Any) -> None:
        """What `tesela sim <operation>` does, as in `sim("xid", gpu="0", xid=48)`."""
        answer = json.loads(perform_admin(self.machine, json.dumps({"op": operation, **fields})))
        assert "error" not in answer, answer

    def look(self) -> None:
        """The looks that come by themselves in up to half a minute, soon."""
        self.plugin.observers.monitor.wake("a test")
        self.plugin.observers.readings.wake()

    def claim(self, name: str, device: str) -> ClaimRecord:
        """A claim that holds `device`, prepared by this driver."""
        ref = self.world.claim(name, device)
        answer = ClaimService(self.plugin.node).prepare([ref], 20.0)[ref.uid]
        assert not isinstance(answer, Refusal), answer
        record = self.plugin.node.records.read(ref.uid)
        assert record is not None
        return record

    def uuid(self, number: int) -> str:
        return self.world.uuid(number)

    def devices(self) -> dict[str, Any]:
        """The published devices by name."""
        slices = self.world.kube.list(RESOURCE_SLICES).items
        return {one["name"]: one for each in slices for one in each["spec"].get("devices", ())}

    def taints(self, device: str) -> set[str]:
        """`key=value:effect`, keys without the prefix."""
        taints = self.devices()[device].get("taints", ())
        return {f"{one['key'].removeprefix(PREFIX)}={one.get('value', '')}:{one['effect']}" for one in taints}

    def tainted(self, key: str) -> set[str]:
        """The names of the devices with a taint of this key."""
        return {name for name in self.devices() if any(one.startswith(f"{key}=") for one in self.taints(name))}

    def becomes_tainted(self, key: str, *devices: str, timeout_s: float = 20.0) -> bool:
        """Whether exactly these devices get a taint of this key."""
        return until(lambda: self.tainted(key) == set(devices), timeout_s)

    def health(self, device: str) -> str:
        return str(self.devices()[device]["attributes"]["health"]["string"])

    def findings(self) -> tuple[Finding, ...]:
        """Those on disk."""
        return HealthStore(self.config.state_dir).read_health().findings

    def signals(self) -> set[str]:
        return {one.signal for one in self.findings()}
