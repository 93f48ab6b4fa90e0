"""Wiring of the node program: builds every part, starts them in order, supervises, stops them in reverse.

No rule is decided here. Order: GPU driver, roster, recovery, kubelet sockets, publisher, monitor. NVML closes last,
after every thread that may be inside it (a call into a closed library is a crash).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from tesela import __version__
from tesela.core.errors import NvmlError, StartError
from tesela.core.model import DRIVER_NAME
from tesela.core.shape import DEFAULT_POLICY
from tesela.edge.backends import open_nvml
from tesela.edge.documents.policy import read_policy
from tesela.edge.host.host import Host
from tesela.edge.host.nvidia_smi import NvidiaSmi
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import Kube
from tesela.edge.kubelet.server import KubeletServer
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.config import PluginConfig
from tesela.plugin.driver_wait import init_nvml
from tesela.plugin.gate import RecoveryGate
from tesela.plugin.lookout import Lookout
from tesela.plugin.monitor import Monitor
from tesela.plugin.node import Node
from tesela.plugin.partition import Partitions
from tesela.plugin.pool_state import read_pool_state
from tesela.plugin.publish import REGISTERED, Publisher
from tesela.plugin.recover import Recovery
from tesela.plugin.roster_repair import repair_roster
from tesela.plugin.service import ClaimService
from tesela.plugin.workload import WorkloadFiles

log = logging.getLogger(__name__)

_STOP_S = 10.0


def run_plugin(config: PluginConfig) -> int:
    """Run until SIGTERM or SIGINT (0) or a failure (StartError, or 1 after a line in the log)."""
    # Before the log begins: a setting that cannot work ends the start in one line, and not only when the driver came.
    kube = KubeClient(load_config(config.kubeconfig))
    nvml = WatchedNvml(open_nvml(config.nvml), timeout_s=config.nvml_timeout_s)
    if config.policy is not None:
        read_policy(config.policy)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname).1s %(name)s: %(message)s"
    )
    settings = " ".join(f"{name}={value}" for name, value in dataclasses.asdict(config).items())
    log.info("tesela %s, %s", __version__, settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    if not init_nvml(nvml, wait_s=config.driver_wait_s, stop=stop):
        return 0
    return serve(Plugin(config, kube, nvml, on_failed=stop.set), stop)


def serve(plugin: Plugin, stop: threading.Event) -> int:
    """Run `plugin` until `stop` is set, by a signal (0) or by its failure (1), which the log tells."""
    plugin.start()
    stop.wait()
    code = plugin.stop()
    return 1 if plugin.failed.is_set() else code


class Plugin:
    """The running node program; tests and the demo build it in process.

    `failed` is set once it can no longer serve, and then `on_failed` is called, which must not block.
    """

    def __init__(
        self, config: PluginConfig, kube: Kube, nvml: WatchedNvml, *, on_failed: Callable[[], None] = lambda: None
    ) -> None:
        self.failed = threading.Event()
        self._on_failed = on_failed
        self._nvml = nvml
        self._config = config
        self.node = _build_node(config, kube, nvml)
        self.publisher = Publisher(
            kube=kube,
            node_name=config.node_name,
            state=lambda: read_pool_state(self.node, nvml),
            lock=self.node.locks.publisher_lock(),
        )
        nvml.listen(lambda: self.publisher.wake("a call into NVML hangs, or hangs no longer"))
        self.recovery = Recovery(self.node)
        self.monitor = Monitor(self.node, self.recovery, self.publisher.wake)
        self.server = KubeletServer(
            driver_name=DRIVER_NAME,
            service=ClaimService(self.node),
            plugins_dir=config.plugins_dir,
            registry_dir=config.registry_dir,
            pod_uid=config.pod_uid,
            on_registered=self._on_registered,
            on_failure=self._fail,
        )

    def start(self) -> None:
        """Look at the machine, begin recovery, open the sockets, publish. StartError: it cannot work."""
        try:
            self.node.lookout.refresh()
        except NvmlError as error:
            if error.code == codes.FUNCTION_NOT_FOUND:
                raise StartError(f"libnvidia-ml.so.1 is too old: {error}; upgrade the GPU driver") from error
            raise
        if not self.node.lookout.roster.gpus:
            log.warning("NVML sees no GPU on this node: an empty pool is published")
        self.recovery.start()
        self.server.start()
        self.publisher.start()
        self.monitor.start()

    def stop(self) -> int:
        """Stop in reverse order; the slices stay, for the process that comes next."""
        ended = self.server.stop(grace_s=_STOP_S)
        ended = self.monitor.stop(_STOP_S) and ended
        self.publisher.stop(_STOP_S)
        self.recovery.join(_STOP_S)
        if not ended:
            # A thread may still be inside NVML: neither closing it nor waiting for that thread is safe.
            log.error("some calls did not end in time; leaving without closing NVML")
            logging.shutdown()
            os._exit(1)
        self._nvml.shutdown()
        return 0

    def _fail(self, _error: Exception) -> None:
        self.failed.set()
        self._on_failed()

    def _on_registered(self, ok: bool, error: str) -> None:
        if ok:
            self.publisher.wake(REGISTERED)
        else:
            log.error("the kubelet refused to register the driver: %s", error)


def _build_node(config: PluginConfig, kube: Kube, nvml: WatchedNvml) -> Node:
    host = Host(
        proc_root=config.proc_root,
        sys_root=config.sys_root,
        dev_root=config.dev_root,
        dev_root_mount=config.dev_root_mount,
    )
    records, locks, partitions = RecordStore(config.state_dir), FileLocks(config.state_dir), Partitions(nvml)
    roster_store = RosterStore(config.state_dir)
    repair_roster(roster_store, records, locks, kube, config.node_name)
    lookout = Lookout(
        nvml=nvml, partitions=partitions, host=host, roster_store=roster_store, records=records, locks=locks
    )
    return Node(
        pool=config.node_name,
        nvml=nvml,
        partitions=partitions,
        host=host,
        nvidia_smi=NvidiaSmi(driver_root_mount=config.driver_root_mount),
        kube=kube,
        records=records,
        locks=locks,
        workload=WorkloadFiles(
            cdi=CdiFiles(config.cdi_dir),
            metadata=MetadataFiles(config.state_dir),
            host=host,
            nvml=nvml,
            lookout=lookout,
        ),
        lookout=lookout,
        policy=DEFAULT_POLICY if config.policy is None else read_policy(config.policy),
        gate=RecoveryGate(),
    )
