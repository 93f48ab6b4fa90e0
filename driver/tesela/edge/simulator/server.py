"""The simulator as a process of its own: NVML and admin requests over a Unix socket, one thread per connection.

A bad frame ends its connection and nothing else; a bad payload is answered. The GPUs live in the machine, so clients
may die at any time. What the bytes mean is in `wire`, `calls` and `admin`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any, Final, TypeVar

from tesela.core.errors import DocumentError, NvmlError, StartError
from tesela.edge.nvml import codes
from tesela.edge.simulator.admin import perform_admin
from tesela.edge.simulator.calls import CALLS, INIT, NAMED_CALL, SHUTDOWN, Call
from tesela.edge.simulator.crowd import Client, Crowd
from tesela.edge.simulator.frames import FrameStream
from tesela.edge.simulator.machine import Machine
from tesela.edge.simulator.named import NamedCalls
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.wire import (
    ADMIN,
    HELLO,
    MAGIC,
    MAX_FRAME_BYTES,
    TEXT,
    U16,
    VERSION,
    Reader,
    Request,
    Response,
    parse_request,
    render_response,
)

R = TypeVar("R")
HELLO_TIMEOUT_S: Final = 10.0
FRAME_TIMEOUT_S: Final = 10.0
"""For the rest of a frame that has begun, and for sending an answer; a silent peer may stay connected."""
_ACCEPT_AGAIN_S: Final = 0.05
_BACKLOG: Final = 4096
_STACK_BYTES: Final = 512 * 1024
"""Of a connection's thread: a call is shallow, and there may be a thousand of them."""
_MAX_SOCKET_PATH: Final = 107
_RESPONSE_HEAD_BYTES: Final = 8
_LOG: Final = logging.getLogger(__name__)


class SimulatorServer:
    """Serves `machine` at the Unix socket `path` from `start` to `stop`. StartError: the path cannot be used.

    `crowd` says how many connections are served at once; one whose first frame has not begun after `hello_s` is closed.
    """

    def __init__(
        self,
        machine: Machine,
        path: Path,
        *,
        crowd: Crowd | None = None,
        hello_s: float = HELLO_TIMEOUT_S,
    ) -> None:
        self.machine = machine
        self.path = path
        self._nvml = SimulatedNvml(machine)
        self._nvml.init()
        self._named = NamedCalls(machine)
        self._listener: socket.socket | None = None
        self.crowd: Final = Crowd() if crowd is None else crowd
        self._hello_s = hello_s
        self._accepting: threading.Thread | None = None

    def start(self) -> None:
        """Binds the socket (mode 0600) and answers from now on; a leftover socket that nobody serves is replaced."""
        if len(os.fsencode(self.path)) > _MAX_SOCKET_PATH:
            raise StartError(f"socket path {self.path} is longer than {_MAX_SOCKET_PATH} bytes; choose a shorter one")
        _remove_leftover(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self.path))
            self.path.chmod(stat.S_IRUSR | stat.S_IWUSR)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise StartError(f"cannot serve at {self.path}: {error}; choose another --socket") from error
        self._listener = listener
        self._accepting = threading.Thread(target=self._accept, args=(listener,), name="sim-accept", daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """Closes every connection and removes the socket; hung calls are released so that their threads end."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self.machine.release()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self.crowd.close()
        self.path.unlink(missing_ok=True)
        if self._accepting is not None:
            self._accepting.join(timeout=FRAME_TIMEOUT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._listener is not listener:
                    return
                # Out of descriptors, or a client that left while it waited: the next one may fare better.
                _LOG.warning("cannot take a connection: %s", error)
                time.sleep(_ACCEPT_AGAIN_S)
                continue
            client = self._admit(connection)
            if client is None:
                connection.close()
            else:
                self._begin_serving(client, listener)

    def _admit(self, connection: socket.socket) -> Client | None:
        try:
            # While there is no room for it, those that come after it wait with the kernel.
            return self.crowd.admit(connection)
        except Exception:  # noqa: BLE001 - the last frame of the thread that all who come later need
            _LOG.exception("a connection could not be admitted")
            return None

    def _begin_serving(self, client: Client, listener: socket.socket) -> None:
        while self._listener is listener:
            usual = threading.stack_size(_STACK_BYTES)
            try:
                threading.Thread(target=self._serve, args=(client,), name="sim-serve", daemon=True).start()
            except RuntimeError as error:
                _LOG.warning("a connection waits: %s", error)
                time.sleep(_ACCEPT_AGAIN_S)
            else:
                return
            finally:
                threading.stack_size(usual)
        client.connection.close()
        self.crowd.leave(client)

    def _serve(self, client: Client) -> None:
        try:
            with client.connection as connection:
                stream = FrameStream(connection, frame_s=FRAME_TIMEOUT_S)
                body = stream.receive(self._hello_s)
                if body is None:
                    return
                response = _greet(parse_request(body), self.machine)
                stream.send(render_response(response))
                while response.code == codes.SUCCESS and (body := stream.receive()) is not None:
                    self._respond(client, stream, parse_request(body))
        except (OSError, DocumentError) as error:
            _LOG.info("a client's connection ended: %s", error)
        finally:
            self.crowd.leave(client)

    def _respond(self, client: Client, stream: FrameStream, request: Request) -> None:
        with self.crowd.call(client, is_limited=request.opcode != ADMIN) as has_room:
            if has_room:
                response = self._answer(request)
            else:
                text = f"{self.crowd.most_calls} calls are held up already; end them with `tesela sim release`"
                response = _refusal(request, codes.INSUFFICIENT_RESOURCES, text)
            stream.send(render_response(response))

    def _answer(self, request: Request) -> Response:
        try:
            payload = self._result(request)
        except NvmlError as error:
            return _refusal(request, error.code, error.text)
        except DocumentError as error:
            return _refusal(request, codes.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001 - the last frame before a client's socket
            _LOG.exception("the simulator failed in call %#06x", request.opcode)
            return _refusal(request, codes.UNKNOWN, f"the simulator failed in this call: {error!r}")
        if len(payload) > MAX_FRAME_BYTES - _RESPONSE_HEAD_BYTES:
            return _refusal(request, codes.UNKNOWN, f"the answer has {len(payload)} bytes, more than a frame holds")
        return Response(request_id=request.request_id, code=codes.SUCCESS, payload=payload)

    def _result(self, request: Request) -> bytes:
        if request.opcode == NAMED_CALL.opcode:
            (named,) = NAMED_CALL.parse_arguments(request.payload)
            return _render_result(NAMED_CALL, self._named.answer(named))
        if request.opcode == ADMIN:
            reader, out = Reader(request.payload), bytearray()
            text = TEXT.take(reader)
            reader.finish()
            TEXT.put(out, perform_admin(self.machine, text))
            return bytes(out)
        call = CALLS.get(request.opcode)
        if call is None:
            raise NvmlError(codes.FUNCTION_NOT_FOUND, f"{request.opcode:#06x}", codes.TEXTS[codes.FUNCTION_NOT_FOUND])
        return _render_result(call, self._perform(call, call.parse_arguments(request.payload)))

    def _perform(self, call: Call[Any], arguments: tuple[Any, ...]) -> Any:
        # Clients count their own nvmlInit: one that dies cannot give its count back.
        if call is INIT or call is SHUTDOWN:
            return self.machine.perform(call.method, None, lambda: None)
        return getattr(self._nvml, call.served_by or call.method)(*arguments)


def _render_result(call: Call[R], value: R) -> bytes:
    try:
        return call.render_result(value)
    except DocumentError as error:
        # The client is not to blame: some state is beyond what NVML can say.
        raise ValueError(f"the result of {call.method} does not fit its form: {error}") from error


def _greet(request: Request, machine: Machine) -> Response:
    reader = Reader(request.payload)
    try:
        if request.opcode != HELLO or reader.take(len(MAGIC)) != MAGIC:
            raise DocumentError("hello", "the first frame must be a hello that begins with TSIM")
        lowest, highest = U16.take(reader), U16.take(reader)
        reader.finish()
    except DocumentError as error:
        return _refusal(request, codes.INVALID_ARGUMENT, str(error))
    if not lowest <= VERSION <= highest:
        text = f"this simulator speaks version {VERSION}, the client {lowest} to {highest}"
        return _refusal(request, codes.ARGUMENT_VERSION_MISMATCH, text)
    payload = bytearray()
    U16.put(payload, VERSION)
    TEXT.put(payload, machine.spec.driver_version)
    return Response(request_id=request.request_id, code=codes.SUCCESS, payload=bytes(payload))


def _refusal(request: Request, code: int, text: str) -> Response:
    payload = bytearray()
    TEXT.put(payload, text)
    return Response(request_id=request.request_id, code=code, payload=bytes(payload))


def _remove_leftover(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StartError(f"{path} exists and is no socket; remove it or choose another --socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StartError(f"cannot tell whether {path} is in use: {error}; choose another --socket") from error
        else:
            raise StartError(f"another simulator serves {path}; stop it or choose another --socket")
