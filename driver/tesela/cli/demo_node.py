"""A whole node in this process and one temporary folder: simulated GPUs, a small cluster, a kubelet, and the driver.

The driver is the real node program; it meets the kubelet over real Unix sockets. Whatever happens, leaving the context
stops every thread and removes the folder. What is shown or applied does not belong here.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tesela.cli.demo_map import Holders, count_offers, plan_holders, plan_map_rows
from tesela.cli.mig_map import MapRow
from tesela.core.errors import StateError, TryAgain
from tesela.core.record import ClaimRecord
from tesela.edge.embedded.claim_controller import ClaimController
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.kubelet import EmbeddedKubelet
from tesela.edge.embedded.scheduler import Scheduler
from tesela.edge.embedded.taint_eviction import TaintEviction
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.hosttree import HostTree
from tesela.edge.simulator.machine import Machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.spec import MachineSpec
from tesela.edge.simulator.state import MachineState
from tesela.edge.store.cdi_files import CdiFiles
from tesela.plugin.config import PluginConfig
from tesela.plugin.main import Plugin

NODE_NAME: Final = "dgx-1"
WAIT_S: Final = 20.0
_LOOK_S: Final = 0.02
_NVML_TIMEOUT_S: Final = 5.0
_MAX_FOLDER_LENGTH: Final = 40
"""Longer ones leave too little of a Unix socket's 107 bytes."""


class DemoNode:
    """The node, from entering the context to leaving it. `start` begins the driver; the kubelet is there before it."""

    def __init__(self, spec: MachineSpec) -> None:
        self.spec = spec
        self._exit = ExitStack()
        self._plugin: Plugin | None = None

    def __enter__(self) -> Self:
        with defer_interrupts():
            try:
                self._build()
            except BaseException:
                self._exit.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with defer_interrupts():
            self._exit.close()

    def _build(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tesela-demo-", dir=_short_folder()))
        self._exit.callback(_remove, self.folder)
        self.machine = Machine(self.spec)
        HostTree(self.folder / "host", self.machine, make_nodes=False)
        (self.folder / "registry").mkdir()
        self.config = _config(self.folder)
        self.cluster = EmbeddedCluster()
        self._exit.callback(self.cluster.close)
        self.kubelet = EmbeddedKubelet(
            self.cluster, NODE_NAME, registry_dir=self.config.registry_dir, cdi_dir=self.config.cdi_dir, poll_s=0.05
        )
        # Run in reverse: the kubelet calls the driver until it has stopped itself, so the driver ends after it.
        self._exit.callback(self._stop_driver)
        controllers = (Scheduler(self.cluster), ClaimController(self.cluster), TaintEviction(self.cluster))
        parts = (self.kubelet, *controllers)
        self._exit.callback(_close_together, [part.close for part in parts])
        for part in parts:
            part.start()

    def start(self) -> None:
        """Starts the driver: it looks at the GPUs, opens its sockets and publishes in the background. StartError."""
        with defer_interrupts():
            nvml = WatchedNvml(SimulatedNvml(self.machine), timeout_s=_NVML_TIMEOUT_S)
            nvml.init()
            plugin = Plugin(self.config, self.cluster, nvml)
            try:
                plugin.start()
            except BaseException:
                # What a failed start leaves: its sockets. The threads that it did not come to are not there to stop.
                plugin.server.stop(0.0)
                raise
            self._plugin = plugin

    @property
    def plugin(self) -> Plugin:
        """The driver, once it was started."""
        if self._plugin is None:
            raise StateError("the driver of the demo was not started")
        return self._plugin

    def _stop_driver(self) -> None:
        if self._plugin is not None:
            self._plugin.stop()

    def wait_for(self, what: str, happened: Callable[[], bool], explain: Callable[[], str] = str) -> None:
        """Until `happened()`. TryAgain after 20 s: `what` did not happen, and what `explain()` says about it."""
        deadline, seen = time.monotonic() + WAIT_S, 0
        while not happened():
            if self.plugin.failed.is_set():
                raise StateError(f"{what}: the driver failed meanwhile: {self.plugin.server.failure}")
            if time.monotonic() > deadline:
                why = explain() or "nothing says why; -v shows the driver's log"
                raise TryAgain(f"{what}: not within {WAIT_S:.0f} s: {why}")
            seen = self.cluster.wait_for_change(seen, _LOOK_S)

    def machine_state(self) -> MachineState:
        """The simulated GPUs now."""
        return self.machine.snapshot()

    def records(self) -> tuple[ClaimRecord, ...]:
        """The driver's records, as they lie on disk."""
        return self.plugin.node.records.list().records

    def cdi_files(self) -> tuple[str, ...]:
        """UIDs of the claims that have a CDI file."""
        return CdiFiles(self.config.cdi_dir).list_ours()

    def leftovers(self) -> tuple[str, ...]:
        """What must not be there once no pod is: records, CDI files and partitions, in words."""
        return (
            *(f"record of {record.claim}" for record in self.records()),
            *(f"CDI file of claim {uid}" for uid in self.cdi_files()),
            *(f"{block.profile} on {row.name}" for row in self.map_rows() for block in row.blocks),
        )

    def map_rows(self) -> tuple[MapRow, ...]:
        """The MIG map: pieces from the machine, names from the driver's roster and records."""
        return self._look()[0]

    def offers(self) -> int:
        """Devices that a claim could still be given."""
        _, machine, holders = self._look()
        return count_offers(self.plugin.node.lookout.roster.gpus, machine, holders)

    def _look(self) -> tuple[tuple[MapRow, ...], MachineState, Holders]:
        # A record outlives its partition on both sides, so records from before and after name every piece in between.
        before = self.records()
        machine = self.machine_state()
        records = {record.claim.uid: record for record in (*self.records(), *before)}
        holders = plan_holders(records.values(), self.cluster.peek(RESOURCE_CLAIMS))
        names = {known.gpu.uuid: known.name for known in self.plugin.node.lookout.roster.gpus}
        return plan_map_rows(machine, names, holders), machine, holders


def _config(folder: Path) -> PluginConfig:
    host = folder / "host"
    return PluginConfig(
        node_name=NODE_NAME,
        pod_uid=None,
        kubeconfig=None,
        nvml="simulated",
        policy=None,
        plugins_dir=folder / "plugins",
        registry_dir=folder / "registry",
        cdi_dir=folder / "cdi",
        driver_root=host,
        driver_root_mount=host,
        dev_root=host,
        dev_root_mount=host,
        proc_root=host / "proc",
        sys_root=host / "sys",
        driver_wait_s=0.0,
        nvml_timeout_s=_NVML_TIMEOUT_S,
    )


def _short_folder() -> str:
    """Where temporary files go, unless sockets below it would have too long a path."""
    chosen = tempfile.gettempdir()
    return chosen if len(chosen.encode()) <= _MAX_FOLDER_LENGTH else "/tmp"  # noqa: S108 - mkdtemp makes it private


def _remove(folder: Path) -> None:
    # Missing is fine: what counts is that nothing stays, and a folder that stays is an error to show.
    if folder.exists():
        shutil.rmtree(folder)


def _close_together(closes: list[Callable[[], None]]) -> None:
    """Calls all at once, since each may take a second; raises the first failure after all have ended."""
    failures: list[Exception] = []

    def call(close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - it is raised again below, in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=call, args=(close,), daemon=True) for close in closes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """A Ctrl-C in here is raised at the end: half a start or half a clean-up would leave things behind.

    Every step in there is bounded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: asked.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked.is_set():
            raise KeyboardInterrupt
