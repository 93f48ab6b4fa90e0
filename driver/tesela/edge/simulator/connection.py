"""The client's side of the simulator's socket: a pool of connections, one request in flight on each.

Nothing waits without bound: connecting has CONNECT_TIMEOUT_S, the greeting as long again, each answer `timeout_s`. What
the bytes mean is in `wire` and `calls`.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from pathlib import Path
from typing import Final

from tesela.core.errors import DocumentError, NvmlError
from tesela.edge.nvml import codes
from tesela.edge.simulator.wire import (
    HELLO,
    MAGIC,
    TEXT,
    U16,
    VERSION,
    Reader,
    Request,
    Response,
    parse_response,
    read_frame,
    render_request,
)

CONNECT_TIMEOUT_S: Final = 5.0
_CONNECT_AGAIN_S: Final = 0.02
_MAX_IDLE: Final = 8
_SEND_TRIES: Final = 4


def _is_readable(connection: socket.socket) -> bool:
    # Not select(): it cannot watch descriptors beyond 1023.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class Connections:
    """Sends requests to the simulator at `path`, from any number of threads."""

    def __init__(self, path: Path, *, timeout_s: float, connect_s: float = CONNECT_TIMEOUT_S) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self._connect_s = connect_s
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def request(self, opcode: int, payload: bytes, function: str) -> Response:
        """The answer, whatever its code.

        NvmlError: DRIVER_NOT_LOADED (nothing answers at the path), INSUFFICIENT_RESOURCES (too many clients want to
        connect there), TIMEOUT (no answer in time; the call may still
        happen), UNKNOWN (the connection broke or the answer cannot be read; likewise).
        """
        connection, request_id = self._send(opcode, payload, function)
        try:
            response = self._receive(connection, request_id, self.timeout_s)
        except TimeoutError as error:
            connection.close()
            text = f"the simulator at {self.path} did not answer within {self.timeout_s:g} s"
            raise NvmlError(codes.TIMEOUT, function, text) from error
        except (OSError, DocumentError) as error:
            connection.close()
            text = f"the connection to the simulator at {self.path} broke: {error}"
            raise NvmlError(codes.UNKNOWN, function, text) from error
        self._give_back(connection)
        return response

    def close(self) -> None:
        """Closes what is idle; a request in flight ends first."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _send(self, opcode: int, payload: bytes, function: str) -> tuple[socket.socket, int]:
        """Sends a request on an idle connection or else a new one.

        The simulator closes connections that are idle where it needs room. What could not be sent whole has not
        happened, so it is sent again on another one.
        """
        for tries_left in reversed(range(_SEND_TRIES)):
            connection = (self._take() if tries_left else None) or self._connect(function)
            request_id = next(self._ids) & 0xFFFFFFFF
            try:
                connection.settimeout(self.timeout_s)
                connection.sendall(render_request(Request(opcode=opcode, request_id=request_id, payload=payload)))
            except (OSError, DocumentError) as error:
                connection.close()
                if tries_left and isinstance(error, ConnectionError):
                    continue
                code = codes.TIMEOUT if isinstance(error, TimeoutError) else codes.UNKNOWN
                text = f"the request could not be sent to the simulator at {self.path}: {error}"
                raise NvmlError(code, function, text) from error
            return connection, request_id
        raise AssertionError("unreachable: the last try returns or raises")

    def _take(self) -> socket.socket | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            # An idle connection has nothing to say: readable means that the simulator went away.
            if not _is_readable(connection):
                return connection
            connection.close()

    def _give_back(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, function: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self._connect_s)
            self._reach(connection, function)
            self._greet(connection, function)
        except (OSError, DocumentError) as error:
            connection.close()
            text = f"no simulator answers at {self.path} ({error}); start it with `tesela sim serve`"
            raise NvmlError(codes.DRIVER_NOT_LOADED, function, text) from error
        except NvmlError:
            connection.close()
            raise
        return connection

    def _reach(self, connection: socket.socket, function: str) -> None:
        end_s = time.monotonic() + self._connect_s
        while True:
            try:
                connection.connect(str(self.path))
            except BlockingIOError as error:
                # As many as the listener may have wait for it already: a socket with a time limit is told so at once.
                if time.monotonic() >= end_s:
                    text = f"more clients wait to connect to the simulator at {self.path} than its socket takes; "
                    text += f"there was no room for {self._connect_s:g} s: end some of them, or try again"
                    raise NvmlError(codes.INSUFFICIENT_RESOURCES, function, text) from error
                time.sleep(_CONNECT_AGAIN_S)
            else:
                return

    def _greet(self, connection: socket.socket, function: str) -> None:
        payload = bytearray(MAGIC)
        U16.put(payload, VERSION)
        U16.put(payload, VERSION)
        request_id = next(self._ids) & 0xFFFFFFFF
        connection.sendall(render_request(Request(opcode=HELLO, request_id=request_id, payload=bytes(payload))))
        response = self._receive(connection, request_id, self._connect_s)
        reader = Reader(response.payload)
        if response.code != codes.SUCCESS:
            raise NvmlError(response.code, function, TEXT.take(reader))
        version = U16.take(reader)
        if version != VERSION:
            raise DocumentError("version", f"the simulator chose {version}, which was not offered")

    def _receive(self, connection: socket.socket, request_id: int, timeout_s: float) -> Response:
        body = read_frame(connection, wait_s=timeout_s, body_s=timeout_s)
        if body is None:
            raise ConnectionResetError("the simulator closed the connection")
        response = parse_response(body)
        if response.request_id != request_id:
            raise DocumentError("request_id", f"answer {response.request_id} to request {request_id}")
        if response.code > codes.HIGHEST_RETURN_CODE and response.code != codes.UNKNOWN:
            raise DocumentError("code", f"{response.code} is none of NVML's return codes")
        return response
