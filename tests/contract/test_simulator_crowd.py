"""More clients than the simulator serves at once, clients that say nothing, and calls that all hang: nobody is lost."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest
from polling import until
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.simulator import wire
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.crowd import Client, Crowd
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


class StumblingCrowd(Crowd):
    """Fails to admit the first."""

    has_stumbled = False

    def admit(self, connection: socket.socket) -> Client | None:
        if not self.has_stumbled:
            self.has_stumbled = True
            raise RuntimeError("stumbled")
        return super().admit(connection)


@contextmanager
def served(server: SimulatorServer) -> Iterator[SimulatorServer]:
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path):
    with served(SimulatorServer(build_machine("a100-40gb:mig"), tmp_path / "sim.sock", crowd=Crowd(MOST))) as server:
        yield server


@pytest.fixture
def crowd():
    """Full of clients that have all called and are idle."""
    crowd = Crowd(MOST)
    with ExitStack() as ending:
        for _ in range(MOST):
            ask(crowd, crowd.admit(ending.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))))
        yield crowd


@pytest.fixture
def newcomer(crowd):
    """A thread in which one more connection waits for room."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        thread = threading.Thread(target=crowd.admit, args=(connection,))
        thread.start()
        yield thread
        crowd.close()
        thread.join(10)


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


def ask(crowd: Crowd, client: Client) -> None:
    with crowd.call(client, is_limited=True):
        pass


def list_leaving(crowd: Crowd) -> list[Client]:
    return [client for client in crowd.clients if client.is_leaving]


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
    assert until(lambda: len(server.crowd) < MOST)
    crowd[0].sendall(COUNT)
    assert [answer(crowd[1]), answer(crowd[0]).code] == [None, codes.SUCCESS]


def test_one_newcomer_sends_one_away_whatever_happens_meanwhile(crowd, newcomer):
    members = crowd.clients
    assert until(lambda: list_leaving(crowd))
    staying = next(client for client in members if not client.is_leaving)
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s:
        ask(crowd, staying)
    assert len(list_leaving(crowd)) == 1


def test_a_newcomer_comes_in_when_who_was_sent_away_is_gone(crowd, newcomer):
    assert until(lambda: list_leaving(crowd))
    crowd.leave(*list_leaving(crowd))
    newcomer.join(10)
    assert not newcomer.is_alive()


def test_who_was_sent_away_in_the_middle_of_a_call_makes_no_room(crowd, newcomer):
    assert until(lambda: list_leaving(crowd))
    with crowd.call(*list_leaving(crowd), is_limited=True):
        assert until(lambda: len(list_leaving(crowd)) == 2)


def test_a_failure_to_admit_a_connection_is_logged_and_concerns_no_other(tmp_path, caplog):
    with served(SimulatorServer(build_machine("a100-40gb"), tmp_path / "sim.sock", crowd=StumblingCrowd())) as server:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unlucky:
            unlucky.connect(str(server.path))
            unlucky.settimeout(10)
            assert unlucky.recv(1) == b""
        assert (len(get_status(server)["gpus"]), "a connection could not be admitted" in caplog.text) == (1, True)


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
    assert until(lambda: not server.crowd)
    assert len(crowd) == 2 * MOST
