"""The client's side of the simulator's socket: a pool of connections, one request in flight on each.

Nothing waits without bound: connecting has CONNECT_TIMEOUT_S, each answer `timeout_s`. What the bytes mean is in
`wire` and `calls`.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
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
_MAX_IDLE: Final = 16


def _is_readable(connection: socket.socket) -> bool:
    # Not select(): it cannot watch descriptors beyond 1023.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class Connections:
    """Sends requests to the simulator at `path`, from any number of threads."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def request(self, opcode: int, payload: bytes, function: str) -> Response:
        """The answer, whatever its code.

        NvmlError: DRIVER_NOT_LOADED (nothing answers at the path), TIMEOUT (no answer in time; the call may still
        happen), UNKNOWN (the connection broke or the answer cannot be read; likewise).
        """
        connection = self._take() or self._connect(function)
        try:
            response = self._exchange(connection, opcode, payload)
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
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.connect(str(self.path))
            self._greet(connection, function)
        except (OSError, DocumentError) as error:
            connection.close()
            text = f"no simulator answers at {self.path} ({error}); start it with `tesela sim serve`"
            raise NvmlError(codes.DRIVER_NOT_LOADED, function, text) from error
        except NvmlError:
            connection.close()
            raise
        return connection

    def _greet(self, connection: socket.socket, function: str) -> None:
        payload = bytearray(MAGIC)
        U16.put(payload, VERSION)
        U16.put(payload, VERSION)
        response = self._exchange(connection, HELLO, bytes(payload), timeout_s=CONNECT_TIMEOUT_S)
        reader = Reader(response.payload)
        if response.code != codes.SUCCESS:
            raise NvmlError(response.code, function, TEXT.take(reader))
        version = U16.take(reader)
        if version != VERSION:
            raise DocumentError("version", f"the simulator chose {version}, which was not offered")

    def _exchange(
        self, connection: socket.socket, opcode: int, payload: bytes, timeout_s: float | None = None
    ) -> Response:
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        request_id = next(self._ids) & 0xFFFFFFFF
        connection.settimeout(timeout_s)
        connection.sendall(render_request(Request(opcode=opcode, request_id=request_id, payload=payload)))
        body = read_frame(connection, wait_s=timeout_s, body_s=timeout_s)
        if body is None:
            raise ConnectionResetError("the simulator closed the connection")
        response = parse_response(body)
        if response.request_id != request_id:
            raise DocumentError("request_id", f"answer {response.request_id} to request {request_id}")
        if response.code > codes.HIGHEST_RETURN_CODE and response.code != codes.UNKNOWN:
            raise DocumentError("code", f"{response.code} is none of NVML's return codes")
        return response
