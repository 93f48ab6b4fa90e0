"""The client's side of the socket where more clients want to connect than may wait for the simulator."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, closing, suppress

import pytest
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.simulator import wire
from tesela.edge.simulator.calls import GET_DEVICE_COUNT
from tesela.edge.simulator.connection import Connections
from tesela.edge.simulator.wire import Response

HELLO_ANSWER = b"\1\0" + b"\0\0\0\0"
SOON_S = 10.0


@pytest.fixture
def ending():
    with ExitStack() as ending:
        yield ending


@pytest.fixture
def listener(ending, tmp_path):
    """One that takes nobody."""
    listener = ending.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(str(tmp_path / "sim.sock"))
    listener.listen(0)
    listener.settimeout(SOON_S)
    return listener


@pytest.fixture
def waiting(listener, ending):
    """The connections that fill the listener's queue."""
    waiting: list[socket.socket] = []
    with suppress(BlockingIOError):
        while True:
            connection = ending.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.setblocking(False)
            connection.connect(listener.getsockname())
            waiting.append(connection)
    return waiting


@pytest.fixture
def opened(ending, tmp_path):
    def opened(connect_s: float) -> Connections:
        return ending.enter_context(closing(Connections(tmp_path / "sim.sock", timeout_s=SOON_S, connect_s=connect_s)))

    return opened


def serve_who_comes_after(count: int, listener: socket.socket) -> None:
    """Lets so many go, and answers the next."""
    for _ in range(count):
        listener.accept()[0].close()
    connection, _ = listener.accept()
    with connection:
        for payload in (HELLO_ANSWER, b"answer"):
            request = wire.parse_request(wire.read_frame(connection, wait_s=SOON_S, body_s=SOON_S))
            response = Response(request_id=request.request_id, code=codes.SUCCESS, payload=payload)
            connection.sendall(wire.render_response(response))


def test_a_queue_that_stays_full_is_no_missing_simulator(waiting, opened):
    with pytest.raises(NvmlError, match="more clients wait to connect") as refused:
        opened(0.1).request(GET_DEVICE_COUNT.opcode, b"", "nvmlDeviceGetCount_v2")
    assert refused.value.code == codes.INSUFFICIENT_RESOURCES


def test_a_full_queue_is_waited_for(listener, waiting, opened):
    server = threading.Timer(0.1, serve_who_comes_after, args=(len(waiting), listener))
    server.start()
    answer = opened(SOON_S).request(GET_DEVICE_COUNT.opcode, b"", "nvmlDeviceGetCount_v2")
    server.join()
    assert answer.payload == b"answer"
