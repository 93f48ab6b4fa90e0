"""The driver as the kubelet sees it: a service socket, and a registrar socket that announces it.

One gRPC server listens on both. Order matters: the service shows before the registrar, and the registrar goes first at
the end, because its vanishing is how the kubelet learns of a graceful exit. A server that nobody can reach any more is
a failure of the process, so one thread watches both sockets; the node program ends then, and its restart repairs what
was lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from tesela import __version__
from tesela.core.errors import StartError, StateError
from tesela.edge.kubelet.calls import Calls, DraV1, DraV1beta1
from tesela.edge.kubelet.health import RESEND_S, HealthStreams, HealthV1, HealthV1alpha1
from tesela.edge.kubelet.listener import SocketFile, remove_dead_sockets
from tesela.edge.kubelet.namesake import add_identity
from tesela.edge.kubelet.port import HealthSource, NodeService
from tesela.edge.kubelet.registration import HEALTH_SERVICES, Registration
from tesela.edge.kubelet.sockets import is_registrar_of, is_service_of_a_pod, plan_sockets
from tesela.edge.kubelet.threads import OwnThreads
from tesela.pb.dra.v1 import api_pb2_grpc as v1_grpc
from tesela.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from tesela.pb.dra_health.v1 import api_pb2_grpc as health_v1_grpc
from tesela.pb.dra_health.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc
from tesela.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc

_log = logging.getLogger(__name__)

_SERVICE_WORKERS = 16
_REGISTRAR_WORKERS = 2
_SHUTDOWN_SLACK_S = 2.0
_WATCH_PERIOD_S = 5.0
"""Each look costs an idle driver its share of wake-ups, and a socket that somebody deletes is no daily event."""


class KubeletServer:
    """Serves one driver instance to the kubelet, from `start` to `stop`; one life only.

    `plugins_dir` and `registry_dir` are the kubelet's (`/var/lib/kubelet/plugins` and `.../plugins_registry`) and must
    have the same path in this process's view as in the kubelet's. With `pod_uid` several instances may run at once.
    `on_registered(ok, error)` is called after each registration, which follows every restart of the kubelet: its start
    deletes the node's ResourceSlices, so this is the moment to look at them. `on_failure(error)` is called at most
    once, from a thread of ours, when the sockets can no longer be reached. Neither may block.
    """

    def __init__(
        self,
        *,
        driver_name: str,
        service: NodeService,
        plugins_dir: Path,
        registry_dir: Path,
        pod_uid: str | None = None,
        on_registered: Callable[[bool, str], None] = lambda ok, error: None,  # noqa: ARG005 - the callback's shape
        on_failure: Callable[[Exception], None] = lambda error: None,  # noqa: ARG005 - likewise
    ) -> None:
        """Raises StartError for names and paths that cannot work; touches nothing."""
        paths = plan_sockets(driver_name, plugins_dir, registry_dir, pod_uid)
        self.driver_name = driver_name
        self.service_socket = Path(paths.service)
        self.registrar_socket = Path(paths.registrar)
        self.failure: Exception | None = None
        self._on_failure = on_failure
        self._ended = threading.Event()
        self._watch: threading.Thread | None = None
        self._service = SocketFile(self.service_socket, role="service")
        self._registrar = SocketFile(self.registrar_socket, role="registrar")
        # Threads of its own: sixteen slow prepares must not make the kubelet's GetInfo time out.
        self._registrar_pool = ThreadPoolExecutor(_REGISTRAR_WORKERS, thread_name_prefix="registrar")
        self._service_pool = ThreadPoolExecutor(_SERVICE_WORKERS, thread_name_prefix="service")
        self._server = grpc.server(self._service_pool)
        self._calls = Calls(service)
        self._registration = Registration(driver_name, self.service_socket, on_registered)
        self._streams: HealthStreams | None = None
        v1_grpc.add_DRAPluginServicer_to_server(DraV1(self._calls), self._server)  # type: ignore[no-untyped-call]
        v1beta1_grpc.add_DRAPluginServicer_to_server(  # type: ignore[no-untyped-call]
            DraV1beta1(self._calls), self._server
        )
        registration_grpc.add_RegistrationServicer_to_server(  # type: ignore[no-untyped-call]
            OwnThreads(self._registration, self._registrar_pool), self._server
        )
        add_identity(self._server, self._registrar_pool, __version__)

    def serve_health(
        self, source: HealthSource, *, services: Sequence[str] = HEALTH_SERVICES, resend_s: float = RESEND_S
    ) -> None:
        """Serves device health too and promises these `services` of it; before `start`.

        A stream is silent for `resend_s` at most.
        """
        self._streams = streams = HealthStreams(source, resend_s=resend_s)
        health_v1_grpc.add_DRAResourceHealthServicer_to_server(  # type: ignore[no-untyped-call]
            OwnThreads(HealthV1(streams), streams.pool), self._server
        )
        health_v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(  # type: ignore[no-untyped-call]
            OwnThreads(HealthV1alpha1(streams), streams.pool), self._server
        )
        self._registration.promise(services)

    def send_health_again(self) -> None:
        """Tells the kubelet the health of every device now; harmless where health is not served or nobody listens."""
        if self._streams is not None:
            self._streams.send_again()

    @property
    def health_streams(self) -> int:
        """How many streams of device health are open now."""
        return 0 if self._streams is None else self._streams.open_streams

    def start(self, *, watch_s: float = _WATCH_PERIOD_S) -> None:
        """Opens the service, then the registrar; looks at both every `watch_s`. StartError: nothing is left open."""
        service_dir, registry_dir = self.service_socket.parent, self.registrar_socket.parent
        if not registry_dir.is_dir():
            raise StartError(f"{registry_dir} is not there: mount the kubelet's plugin registry under its own path")
        try:
            service_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"cannot create {service_dir}: {error.strerror}") from error
        try:
            self._service.bind(self._server)
            self._registrar.bind(self._server)
            self._server.start()
            self._service.show()
            self._registrar.show()
        except StartError:
            self._close(0.0)
            raise
        _log.info("serving %s on %s, announced by %s", self.driver_name, self.service_socket, self.registrar_socket)
        remove_dead_sockets(registry_dir, lambda name: is_registrar_of(self.driver_name, name))
        remove_dead_sockets(service_dir, is_service_of_a_pod)
        self._watch = threading.Thread(target=self._watch_sockets, args=(watch_s,), name="kubelet-sockets", daemon=True)
        self._watch.start()

    def stop(self, grace_s: float = 30.0) -> bool:
        """Takes the registrar away, then lets calls under way end for `grace_s`; False if some go on even then.

        Their callers are cut off, but their threads run until the node service returns, and the interpreter waits for
        them at its exit: a process that gets False and must end calls os._exit. Safe to call twice and without `start`.
        """
        self._ended.set()
        ended = self._close(grace_s)
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join(_SHUTDOWN_SLACK_S)
        return ended and self._calls.under_way == 0

    def _close(self, grace_s: float) -> bool:
        """Takes the sockets away, ends the streams, then the server; False if gRPC did not end.

        A cancelled call's thread runs on until its handler returns; the answer is dropped.
        """
        self._registrar.withdraw()
        self._service.withdraw()
        if self._streams is not None:
            self._streams.close()
        ended = self._server.stop(grace_s).wait(grace_s + _SHUTDOWN_SLACK_S)
        # Only now: gRPC hands a call that comes before its stop to a pool, and must find it open.
        streams = () if self._streams is None else (self._streams.pool,)
        for pool in (self._service_pool, self._registrar_pool, *streams):
            pool.shutdown(wait=False, cancel_futures=True)
        return ended

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the server has ended within `timeout_s`: stopped, or failed, and then `failure` holds why."""
        return self._ended.wait(timeout_s)

    def _watch_sockets(self, period_s: float) -> None:
        while not self._ended.wait(period_s):
            fault = self._find_fault()
            if fault is None or self._ended.is_set():
                continue
            self.failure = StateError(f"{fault}: the kubelet cannot reach driver {self.driver_name} until it restarts")
            self._ended.set()
            _log.error("%s", self.failure)
            self._on_failure(self.failure)

    def _find_fault(self) -> str | None:
        if not self._server.wait_for_termination(timeout=0):
            return f"the gRPC server of {self.service_socket} and {self.registrar_socket} ended by itself"
        return self._registrar.find_fault() or self._service.find_fault()
