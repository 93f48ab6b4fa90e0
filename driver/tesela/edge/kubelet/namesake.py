"""Other drivers of our name on this node: they answer at a registrar socket of that name, and are no tesela.

The kubelet calls whichever of one name registered last, so two different drivers of one name hand each other's claims
about. During an update two processes of tesela serve at once, and that is well; so each answers a call that no other
driver knows. The kubelet never makes it.
"""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from tesela.pb.pluginregistration.v1 import api_pb2 as registration
from tesela.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc

_log = logging.getLogger(__name__)

_SERVICE: Final = "tesela.Identity"
_METHOD: Final = "Get"
_TIMEOUT_S: Final = 1.0
"""As the kubelet allows a registrar for its answer."""
_MOST_SOCKETS: Final = 16


def add_identity(server: grpc.Server, pool: ThreadPoolExecutor, version: str) -> None:
    """Has `server` say, to whoever asks, that this is tesela of `version`."""
    handler = grpc.unary_unary_rpc_method_handler(_Answer(version.encode(), pool))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))


def list_namesakes(driver_name: str, registry_dir: Path, *, but: Collection[Path] = ()) -> tuple[Path, ...]:
    """Registrar sockets at which a driver of this name answers that is no tesela; `but` are not asked.

    One that does not answer within a second is none: nobody can say whose it is, and the kubelet gives it up as well.
    """
    sockets = _list_sockets(driver_name, registry_dir)
    return tuple(path for path in sockets if path not in but and _is_namesake(driver_name, path))


class _Answer:
    """The method; gRPC looks at a handler for the threads to run it on, and slow prepares must not hold it up."""

    def __init__(self, answer: bytes, pool: ThreadPoolExecutor) -> None:
        self._answer = answer
        self.experimental_thread_pool = pool

    def __call__(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del request, context
        return self._answer


def _list_sockets(driver_name: str, registry_dir: Path) -> list[Path]:
    """Named as Kubernetes' own plugin library names them: the driver's name comes first."""
    found = []
    try:
        for path in sorted(registry_dir.iterdir()):
            named = path.name.startswith(f"{driver_name}-") and path.name.endswith(".sock")
            with contextlib.suppress(FileNotFoundError):
                if named and stat.S_ISSOCK(path.lstat().st_mode):
                    found.append(path)
    except OSError as error:
        _log.warning("whether another driver has the name %s is not known: %s", driver_name, error)
    return found[:_MOST_SOCKETS]


def _is_namesake(driver_name: str, path: Path) -> bool:
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        stub = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
        try:
            info = stub.GetInfo(registration.InfoRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return False
        try:
            ask = channel.unary_unary(f"/{_SERVICE}/{_METHOD}", request_serializer=None, response_deserializer=None)
            ask(b"", timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            unknown = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED
            return unknown and info.name == driver_name
    return False
