"""The node program: starts the parts that `assembly` built in order, supervises, stops them in reverse.

No rule is decided here. Order: GPU driver, roster, recovery, kubelet sockets, publisher, background. NVML closes last,
after every thread that may be inside it (a call into a closed library is a crash).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

from tesela import __version__
from tesela.core.errors import NvmlError, StartError, TeselaError
from tesela.core.trouble import Trouble
from tesela.edge.backends import open_library_file, open_nvml
from tesela.edge.documents.policy import read_policy
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import Kube
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.store.locks import FileLocks
from tesela.edge.telemetry.logs import LogFormat, configure_logs, log_everything
from tesela.edge.telemetry.port import SILENT, Telemetry
from tesela.plugin.assembly import build_parts, build_release_files
from tesela.plugin.config import PluginConfig
from tesela.plugin.driver_wait import init_nvml
from tesela.plugin.monitor import look_at_gpus
from tesela.plugin.observability import Observability
from tesela.plugin.preflight import Preflight, check_host
from tesela.plugin.publish import REGISTERED
from tesela.plugin.release_gpu import ReleaseFiles, open_unless_released
from tesela.plugin.snapshot import read_snapshot

log = logging.getLogger(__name__)

_STOP_S = 10.0


def run_plugin(config: PluginConfig) -> int:
    """Run until SIGTERM or SIGINT (0) or a failure (StartError, or 1 after a line in the log)."""
    configure_logs(config.log_format, config.log_level)
    log_everything()
    try:
        return _run(config)
    except TeselaError as error:
        if config.log_format is LogFormat.TEXT:
            raise  # the command says it in one line
        log.critical("%s", error)
        return 1


def _run(config: PluginConfig) -> int:
    # Before the first line of the log: a setting that cannot work ends the start in one line, and not only when the
    # driver came.
    watched = Observability(config)
    kube = KubeClient(load_config(config.kubeconfig), telemetry=watched.telemetry)
    nvml = WatchedNvml(
        open_nvml(config.nvml, config.driver_root_mount),
        timeout_s=config.nvml_timeout_s,
        telemetry=watched.telemetry,
        mark=FileLocks(config.state_dir).call_marks.hold,
    )
    if config.policy is not None:
        read_policy(config.policy)
    check_host(config)
    settings = " ".join(f"{name}={value}" for name, value in dataclasses.asdict(config).items())
    log.info("tesela %s, %s", __version__, settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    watched.start()
    try:
        return _run_watched(config, kube, nvml, watched, stop)
    finally:
        watched.close()


def _run_watched(
    config: PluginConfig, kube: KubeClient, nvml: WatchedNvml, watched: Observability, stop: threading.Event
) -> int:
    if not Preflight(config, kube, watched.tell_waiting).wait(stop):
        return 0
    files = build_release_files(config, kube)
    files.follow_label()
    library = open_library_file(config.nvml, config.driver_root_mount)
    try_init = partial(open_unless_released, nvml, files)
    if not init_nvml(try_init, wait_s=config.driver_wait_s, stop=stop, library=library, tell=watched.tell_waiting):
        return 0
    plugin = Plugin(config, kube, nvml, on_failed=stop.set, telemetry=watched.telemetry, release_files=files)
    plugin.show(watched)
    return serve(plugin, stop)


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
        self,
        config: PluginConfig,
        kube: Kube,
        nvml: WatchedNvml,
        *,
        on_failed: Callable[[], None] = lambda: None,
        telemetry: Telemetry = SILENT,
        release_files: ReleaseFiles | None = None,
    ) -> None:
        self.failed = threading.Event()
        self.registered = threading.Event()
        self._on_failed = on_failed
        self._has_looked = False
        self._nvml = nvml
        self._parts = build_parts(
            config,
            kube,
            nvml,
            on_registered=self._on_registered,
            on_failure=self._fail,
            telemetry=telemetry,
            release_files=release_files,
        )
        self.node = self._parts.node
        self.publisher = self._parts.publisher
        self.server = self._parts.server
        self.observers = self._parts.observers
        self.release = self._parts.release
        self.neighbours = self._parts.neighbours

    def start(self) -> None:
        """Look at the machine, begin recovery, open the sockets, publish. StartError: it cannot work.

        While NVML is released, the first two wait until it is open.
        """
        self._parts.release.attach(self._parts.pausable, self._after_open)
        self.node.health.observe()  # what stood before: a look takes that back, or the first slice shows it
        if self._nvml.is_open:
            self._look()
        self.server.start()
        self.neighbours.registration.begin()
        self.neighbours.look()
        self.publisher.start()
        for part in self._parts.background:
            part.start()

    def show(self, watched: Observability) -> None:
        """Let `watched` tell of this program: its metrics, whether it works, and whether it is ready."""
        watched.attach(
            parts=(self.publisher, *self._parts.background),
            read_snapshot=lambda: read_snapshot(self._parts, self._nvml, self.registered.is_set),
            list_unready=self._list_unready,
        )

    def _list_unready(self) -> Iterator[str]:
        standing = self.neighbours.standing
        if not self.registered.is_set() and Trouble.KUBELET not in standing:
            yield "the kubelet has not registered this driver yet"
        if not self.publisher.published.is_set():
            yield "the ResourceSlices of this node are not published yet"
        yield from standing.values()

    def _after_open(self) -> None:
        self.node.lookout.note_opened()
        if self._has_looked:
            self.observers.monitor.look_at_machine()
        else:
            self._look()

    def _look(self) -> None:
        try:
            look_at_gpus(self.node)
        except NvmlError as error:
            if error.code == codes.FUNCTION_NOT_FOUND:
                raise StartError(f"libnvidia-ml.so.1 is too old: {error}; upgrade the GPU driver") from error
            raise
        if not self.node.lookout.roster.gpus:
            log.warning("NVML sees no GPU on this node: an empty pool is published")
        self._parts.adopter.adopt()  # may end the start, so no thread waits for events of NVML yet
        # NVML delivers no event of what happened before somebody listens: that is read, before the first publish.
        self.observers.events.start()
        self.observers.readings.read()
        self._parts.recovery.start()
        self._has_looked = True

    def stop(self) -> int:
        """Stop in reverse order; the slices stay, for the process that comes next."""
        ended = self.server.stop(grace_s=_STOP_S)
        for part in reversed(self._parts.background):
            ended = part.stop(_STOP_S) and ended
        self.publisher.stop(_STOP_S)
        self._parts.recovery.join(_STOP_S)
        if not ended:
            # A thread may still be inside NVML: neither closing it nor waiting for that thread is safe.
            log.error("some calls did not end in time; leaving without closing NVML")
            logging.shutdown()
            os._exit(1)
        try:
            self._nvml.shutdown()
        except NvmlError as error:
            log.warning("NVML was not closed: %s", error)  # one that no longer matches its module, for one
        self._parts.release.close()
        return 0

    def _fail(self, _error: Exception) -> None:
        self.failed.set()
        self._on_failed()

    def _on_registered(self, ok: bool, error: str) -> None:
        self.neighbours.registration.note(registered=ok, refused=error)
        self.neighbours.wake()
        if ok:
            self.registered.set()
            self.publisher.wake(REGISTERED)
        else:
            self.registered.clear()
            log.error("the kubelet refused to register the driver: %s", error)
