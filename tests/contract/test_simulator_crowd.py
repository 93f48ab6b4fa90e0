"""More clients than the simulator serves at once, clients that say nothing, and calls that all hang: nobody is lost."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from polling import until
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.simulator import wire
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.faults import Hang
from tesela.edge.simulator.frames import FrameStream
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.remote import RemoteNvml
from tesela.edge.simulator.server import SimulatorServer
from tesela.edge.simulator.wire import Request, Response

MOST = 8
MOST_CALLS = 6
HELLO = wire.render_request(Request(opcode=0, request_id=1, payload=b"TSIM" + struct.pack("<HH", 1, 1)))
COUNT = wire.render_request(Request(opcode=0x12, request_id=2, payload=b""))


@pytest.fixture
def server(tmp_path):
    server = SimulatorServer(build_machine("a100-40gb:mig"), tmp_path / "sim.sock", most_connections=MOST)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nvml(server):
    with initialised(server) as nvml:
        yield nvml


@pytest.fixture
def dial(server):
    made: list[socket.socket] = []

    def dial(first: bytes = b"") -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.append(connection)
        connection.settimeout(10)
        connection.connect(str(server.path))
        connection.sendall(first)
        return connection

    yield dial
    for connection in made:
        connection.close()


@contextmanager
def initialised(server) -> Iterator[RemoteNvml]:
    with closing(RemoteNvml(server.path, timeout_s=30)) as nvml:
        nvml.init()
        yield nvml


def answer(connection: socket.socket) -> Response | None:
    body = wire.read_frame(connection, wait_s=10, body_s=10)
    return None if body is None else wire.parse_response(body)


def get_status(server) -> dict:
    with closing(SimulatorAdmin(server.path, timeout_s=10)) as admin:
        return admin.send({"op": "status"})


def hang_calls(server, count: int) -> list[threading.Thread]:
    """Callers that hang, one connection each."""
    server.machine.inject(Hang(function="nvmlDeviceGetMinorNumber", times=count))

    def call() -> None:
        with initialised(server) as nvml:
            nvml.get_minor_number(server.machine.snapshot().gpus[0].uuid)

    callers = [threading.Thread(target=call) for _ in range(count)]
    for caller in callers:
        caller.start()
    assert server.machine.wait_for_hung_calls(count, 10)
    return callers


def test_an_idle_crowd_makes_room(server, dial):
    crowd = [dial(HELLO) for _ in range(2 * MOST)]
    assert {answer(connection).code for connection in crowd} == {codes.SUCCESS}


def test_an_idle_crowd_does_not_lock_operators_out(server, dial):
    crowd = [dial(HELLO + COUNT) for _ in range(MOST)]
    assert [answer(connection).code for connection in crowd for _ in range(2)] == [codes.SUCCESS] * (2 * MOST)
    assert get_status(server)["gpus"]


def test_who_said_nothing_for_longest_leaves_first(server, dial):
    crowd = []
    for _ in range(MOST):
        crowd.append(dial(HELLO + COUNT))
        answer(crowd[-1]), answer(crowd[-1])
    crowd[0].sendall(COUNT)
    answer(crowd[0])
    get_status(server)
    assert until(lambda: len(server._open) < MOST)
    assert (answer(crowd[1]), crowd[0].sendall(COUNT)) == (None, None)


def test_silent_connections_do_not_lock_operators_out(server, dial):
    crowd = [dial() for _ in range(2 * MOST)]
    assert get_status(server)["gpus"]
    assert len(crowd) == 2 * MOST


def test_who_says_no_hello_is_let_go(tmp_path):
    server = SimulatorServer(build_machine("a100-40gb"), tmp_path / "sim.sock", hello_s=0.2)
    server.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(server.path))
        assert answer(silent) is None
    server.stop()


def test_the_wait_for_a_first_frame_is_only_for_that():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with near, far:
        stream = FrameStream(near, frame_s=10)
        with pytest.raises(TimeoutError):
            stream.receive(0.05)
        assert near.gettimeout() is None


def test_callers_beyond_the_limit_take_turns(server):
    def call(_: int) -> int:
        with initialised(server) as nvml:
            return nvml.get_device_count()

    with ThreadPoolExecutor(2 * MOST) as pool:
        assert set(pool.map(call, range(20 * MOST))) == {1}


def test_one_client_with_more_threads_than_connections(server, nvml):
    with ThreadPoolExecutor(2 * MOST) as pool:
        assert set(pool.map(lambda _: nvml.get_device_count(), range(50 * MOST))) == {1}


def test_calls_that_all_hang_do_not_lock_operators_out(server):
    callers = hang_calls(server, MOST_CALLS)
    assert len(get_status(server)["calls"]) == MOST_CALLS
    server.machine.release()
    for caller in callers:
        caller.join(10)


def test_a_call_more_than_may_hang_is_refused(server, nvml):
    callers = hang_calls(server, MOST_CALLS)
    with pytest.raises(NvmlError) as refused:
        nvml.get_device_count()
    assert refused.value.code == codes.INSUFFICIENT_RESOURCES
    server.machine.release()
    for caller in callers:
        caller.join(10)
    assert nvml.get_device_count() == 1


def test_a_crowd_ends_with_the_server(server, dial):
    crowd = [dial(HELLO) for _ in range(2 * MOST)]
    server.stop()
    assert not any(thread.name == "sim-accept" for thread in threading.enumerate())
    assert until(lambda: not server._open)
    assert len(crowd) == 2 * MOST
