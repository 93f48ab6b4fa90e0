"""The kubelet's side of the protocols, for stand-ins and tests: finds a driver by its registrar socket and calls it.

It does what the kubelet does: one second for GetInfo, 45 for prepare and unprepare, one connection for all service
calls, the first version of the driver's list that it knows (of health, the newest that both know), and its :authority
headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import grpc

from tesela.core.errors import StateError, TryAgain
from tesela.core.model import ClaimRef
from tesela.edge.kubelet import health_wire, wire
from tesela.edge.kubelet.port import DeviceHealth, PrepareResult
from tesela.edge.kubelet.registration import HEALTH_SERVICES, PLUGIN_TYPE, SUPPORTED_VERSIONS
from tesela.pb.dra.v1 import api_pb2 as v1
from tesela.pb.dra.v1 import api_pb2_grpc as v1_grpc
from tesela.pb.dra.v1beta1 import api_pb2 as v1beta1
from tesela.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from tesela.pb.dra_health.v1 import api_pb2 as health_v1
from tesela.pb.dra_health.v1 import api_pb2_grpc as health_v1_grpc
from tesela.pb.dra_health.v1alpha1 import api_pb2 as health_v1alpha1
from tesela.pb.dra_health.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc
from tesela.pb.pluginregistration.v1 import api_pb2 as registration
from tesela.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc

GET_INFO_TIMEOUT_S = 1.0
NOTIFY_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 45.0
KNOWN = SUPPORTED_VERSIONS + HEALTH_SERVICES

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """What a driver says of itself. `endpoint` is its service socket, `versions` the services in its order."""

    name: str
    endpoint: str
    versions: tuple[str, ...]


HealthReport = tuple[tuple[DeviceHealth, int], ...]
"""Each device of one report, and the seconds that its entry holds."""


class HealthWatch:
    """An open stream of device health: iterate over its reports, `cancel` from anywhere."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[HealthReport]:
        """Each report as it comes, until the driver or `cancel` ends the stream. TryAgain where it broke."""
        try:
            for response in self._call:
                yield health_wire.parse_report(response)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise StateError(f"the driver promised a service that it does not have: {_describe(error)}") from error
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise TryAgain(f"NodeWatchResources: {_describe(error)}") from error

    def cancel(self) -> None:
        """Ends the stream from this side."""
        self._call.cancel()


class PluginClient:
    """Plays the kubelet for one driver instance; close it, or use it as a context manager.

    `known_versions` is what this kubelet speaks. Every method raises TryAgain when the driver does not answer in time
    or answers what the kubelet would not accept: the kubelet tries again in all these cases.
    """

    def __init__(self, registrar_socket: Path, known_versions: Iterable[str] = KNOWN) -> None:
        self._registrar_socket = registrar_socket
        self._known_versions = frozenset(known_versions)
        self._service: grpc.Channel | None = None
        self._endpoint = ""
        self._version = ""
        self._health_service: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the service connection; `register` opens another."""
        if self._service is not None:
            self._service.close()
            self._service = None

    def register(self) -> PluginInfo:
        """Asks who is there, opens the service connection (lazily), and tells the driver whether it was accepted."""
        # The kubelet's registration dial puts the percent-encoded path into :authority, its service dial "localhost".
        authority = quote(str(self._registrar_socket), safe="")
        with _open_channel(str(self._registrar_socket), authority) as channel:
            stub = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            info = self._call(lambda: stub.GetInfo(registration.InfoRequest(), timeout=GET_INFO_TIMEOUT_S), "GetInfo")
            problem = self._accept(info)
            status = registration.RegistrationStatus(plugin_registered=not problem, error=problem)
            self._call(
                lambda: stub.NotifyRegistrationStatus(status, timeout=NOTIFY_TIMEOUT_S), "NotifyRegistrationStatus"
            )
        if problem:
            raise TryAgain(f"plugin at {self._registrar_socket} was not registered: {problem}")
        return PluginInfo(name=info.name, endpoint=self._endpoint, versions=tuple(info.supported_versions))

    def prepare(self, claims: Sequence[ClaimRef], timeout_s: float = CALL_TIMEOUT_S) -> dict[str, PrepareResult]:
        """By claim UID: the devices, or the driver's refusal. One call for all `claims`, which are of one pod."""
        name, stub = "NodePrepareResources", self._stub()
        request = (
            v1.NodePrepareResourcesRequest(claims=_render_claims(v1.Claim, claims))
            if self._version == "v1.DRAPlugin"
            else v1beta1.NodePrepareResourcesRequest(claims=_render_claims(v1beta1.Claim, claims))
        )
        call = stub.NodePrepareResources
        answers = wire.parse_prepared(self._call(lambda: call(request, timeout=timeout_s, wait_for_ready=True), name))
        self._check_complete(name, claims, answers.keys())
        return answers

    def unprepare(self, claims: Sequence[ClaimRef], timeout_s: float = CALL_TIMEOUT_S) -> dict[str, str | None]:
        """By claim UID: None for success, or the driver's sentence."""
        name, stub = "NodeUnprepareResources", self._stub()
        request = (
            v1.NodeUnprepareResourcesRequest(claims=_render_claims(v1.Claim, claims))
            if self._version == "v1.DRAPlugin"
            else v1beta1.NodeUnprepareResourcesRequest(claims=_render_claims(v1beta1.Claim, claims))
        )
        call = stub.NodeUnprepareResources
        answers = wire.parse_unprepared(self._call(lambda: call(request, timeout=timeout_s, wait_for_ready=True), name))
        self._check_complete(name, claims, answers.keys())
        return answers

    @property
    def health_service(self) -> str | None:
        """The health service that both sides speak; None before `register` and where there is none."""
        return self._health_service

    def watch_health(self) -> HealthWatch:
        """Opens a stream of device health; a driver that is not there is found out by the first report."""
        if self._service is None or self._health_service is None:
            raise TryAgain(f"plugin at {self._registrar_socket} is not registered, or promised no health")
        if self._health_service == "v1.DRAResourceHealth":
            v1_stub = health_v1_grpc.DRAResourceHealthStub(self._service)  # type: ignore[no-untyped-call]
            return HealthWatch(v1_stub.NodeWatchResources(health_v1.NodeWatchResourcesRequest()))
        v1alpha1_stub = health_v1alpha1_grpc.DRAResourceHealthStub(self._service)  # type: ignore[no-untyped-call]
        return HealthWatch(v1alpha1_stub.NodeWatchResources(health_v1alpha1.NodeWatchResourcesRequest()))

    def _accept(self, info: registration.PluginInfo) -> str:
        """Takes the plugin in; why not, as a sentence, else the empty string."""
        if info.type != PLUGIN_TYPE or not info.name:
            return f"type {info.type!r} with name {info.name!r} is no DRA plugin"
        served = [version for version in info.supported_versions if version in self._known_versions]
        version = next((version for version in served if version in SUPPORTED_VERSIONS), None)
        if version is None:
            return f"none of the services {list(info.supported_versions)} is supported"
        self.close()
        self._version = version
        self._health_service = next((version for version in HEALTH_SERVICES if version in served), None)
        self._endpoint = info.endpoint or str(self._registrar_socket)
        self._service = _open_channel(self._endpoint, "localhost")
        return ""

    def _stub(self) -> Any:
        if self._service is None:
            raise TryAgain(f"plugin at {self._registrar_socket} is not registered")
        if self._version == "v1.DRAPlugin":
            return v1_grpc.DRAPluginStub(self._service)  # type: ignore[no-untyped-call]
        return v1beta1_grpc.DRAPluginStub(self._service)  # type: ignore[no-untyped-call]

    def _call(self, call: Callable[[], _T], name: str) -> _T:
        try:
            return call()
        except grpc.RpcError as error:
            raise TryAgain(f"{name} at {self._endpoint or self._registrar_socket}: {_describe(error)}") from error

    @staticmethod
    def _check_complete(name: str, claims: Sequence[ClaimRef], answered: Iterable[str]) -> None:
        asked = {claim.uid for claim in claims}
        if unknown := sorted(set(answered) - asked):
            raise TryAgain(f"{name}: unknown claim UID in response: {unknown}")
        if skipped := sorted(asked - set(answered)):
            raise TryAgain(f"{name} skipped {len(skipped)} ResourceClaims: {skipped}")


def _open_channel(path: str, authority: str) -> grpc.Channel:
    options = [
        ("grpc.default_authority", authority),
        # Channels to one path would otherwise share a connection, and its back-off, across instances of the driver.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    return grpc.insecure_channel(f"unix:{path}", options=options)


def _render_claims(message: Callable[..., _T], claims: Sequence[ClaimRef]) -> list[_T]:
    return [message(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


def _describe(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
