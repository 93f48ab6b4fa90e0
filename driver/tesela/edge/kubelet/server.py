"""The driver as the kubelet sees it: a service socket, and a registrar socket that announces it.

Order matters. The service listens before the registrar shows, and the registrar goes first at the end: its vanishing
is how the kubelet learns of a graceful exit. A server that nobody can reach any more is a failure of the process, so
one thread watches both sockets; the node program ends then, and its restart repairs what was lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from tesela.core.errors import StartError, StateError
from tesela.edge.kubelet.calls import Calls, DraV1, DraV1beta1
from tesela.edge.kubelet.listener import SocketListener, remove_dead_sockets
from tesela.edge.kubelet.port import NodeService
from tesela.edge.kubelet.registration import Registration
from tesela.edge.kubelet.sockets import is_registrar_of, is_service_of_a_pod, plan_sockets
from tesela.pb.dra.v1 import api_pb2_grpc as v1_grpc
from tesela.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from tesela.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc

_log = logging.getLogger(__name__)

_SERVICE_WORKERS = 16
_REGISTRAR_WORKERS = 2
_REGISTRAR_GRACE_S = 1.0
_WATCH_INTERVAL_S = 1.0


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
        self._watch = threading.Thread(target=self._watch_sockets, name="kubelet-sockets", daemon=True)
        self._service = SocketListener(self.service_socket, workers=_SERVICE_WORKERS, role="service")
        # A server and threads of its own: sixteen slow prepares must not make the kubelet's GetInfo time out.
        self._registrar = SocketListener(self.registrar_socket, workers=_REGISTRAR_WORKERS, role="registrar")
        self._calls = calls = Calls(service)
        v1_grpc.add_DRAPluginServicer_to_server(DraV1(calls), self._service.server)  # type: ignore[no-untyped-call]
        v1beta1_grpc.add_DRAPluginServicer_to_server(  # type: ignore[no-untyped-call]
            DraV1beta1(calls), self._service.server
        )
        registration_grpc.add_RegistrationServicer_to_server(  # type: ignore[no-untyped-call]
            Registration(driver_name, self.service_socket, on_registered), self._registrar.server
        )

    def start(self) -> None:
        """Opens the service, then the registrar. Raises StartError, with nothing left open."""
        service_dir, registry_dir = self.service_socket.parent, self.registrar_socket.parent
        if not registry_dir.is_dir():
            raise StartError(f"{registry_dir} is not there: mount the kubelet's plugin registry under its own path")
        try:
            service_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"cannot create {service_dir}: {error.strerror}") from error
        self._service.open()
        try:
            self._registrar.open()
        except StartError:
            self._service.close(0.0)
            raise
        _log.info("serving %s on %s, announced by %s", self.driver_name, self.service_socket, self.registrar_socket)
        remove_dead_sockets(registry_dir, lambda name: is_registrar_of(self.driver_name, name))
        remove_dead_sockets(service_dir, is_service_of_a_pod)
        self._watch.start()

    def stop(self, grace_s: float = 30.0) -> bool:
        """Takes the registrar away, then lets calls under way end for `grace_s`; False if some go on even then.

        Their callers are cut off, but their threads run until the node service returns, and the interpreter waits for
        them at its exit: a process that gets False and must end calls os._exit. Safe to call twice and without `start`.
        """
        self._ended.set()
        self._registrar.close(_REGISTRAR_GRACE_S)
        ended = self._service.close(grace_s)
        if self._watch.ident is not None and self._watch is not threading.current_thread():
            self._watch.join(_WATCH_INTERVAL_S)
        return ended and self._calls.under_way == 0

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the server has ended within `timeout_s`: stopped, or failed, and then `failure` holds why."""
        return self._ended.wait(timeout_s)

    def _watch_sockets(self) -> None:
        while not self._ended.wait(_WATCH_INTERVAL_S):
            fault = self._registrar.find_fault() or self._service.find_fault()
            if fault is None or self._ended.is_set():
                continue
            self.failure = StateError(f"{fault}: the kubelet cannot reach driver {self.driver_name} until it restarts")
            self._ended.set()
            _log.error("%s", self.failure)
            self._on_failure(self.failure)
