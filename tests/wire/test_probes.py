"""The HTTP side of being watched: probes that tell the truth, and a server that nobody can keep from answering."""

from __future__ import annotations

import socket
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import pytest
from polling import until
from tesela.core.errors import StartError, StateError
from tesela.edge.http.server import Answer, HttpServer, SingleFlight
from watched_program import Watched, fetch

OK = Answer(HTTPStatus.OK, b"fine\n")


@pytest.fixture
def serve():
    """Serves routes on a free port of the loopback address; returns the port."""
    servers = []

    def start(**routes):
        named = {f"/{name}": lambda _accept, do=do: do() for name, do in routes.items()}
        server = HttpServer("127.0.0.1", 0, named, request_s=0.5)
        server.start()
        servers.append(server)
        return server.port

    yield start
    for server in servers:
        server.close()


def send(port, data, *, timeout_s=20):
    """What comes back for raw bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


@pytest.fixture
def program():
    """Its driver waits for NVML until `start`."""
    with tempfile.TemporaryDirectory(prefix="tesela-") as folder:
        program = Watched(Path(folder), "h100-80gb")
        yield program
        program.close()


# Probes


def test_before_the_gpu_driver_the_process_is_alive(program):
    assert program.get("/healthz")[0] == 200


def test_before_the_gpu_driver_it_is_not_ready_and_says_why(program):
    status, _, text = program.get("/readyz")

    assert (status, "waits for the API server or the GPU driver" in text) == (503, True)


def test_before_the_gpu_driver_there_are_metrics(program):
    status, _, text = program.get("/metrics")

    assert (status, "tesela_slice_writes_total 0.0" in text) == (200, True)


def test_without_the_kubelet_it_is_not_ready(program):
    program.start()

    assert program.get("/readyz")[2] == "the kubelet has not registered this driver yet\n"


def test_registered_and_published_is_ready(program):
    program.start()
    program.register()

    assert until(lambda: program.get("/readyz")[0] == 200)


def test_all_threads_alive_is_healthy(program):
    program.start()

    assert program.get("/healthz")[2] == "ok\n"


def test_a_part_that_has_stopped_working_is_named(program):
    class Broken:
        def find_fault(self):
            return "the thread publisher has ended"

    program.watched.attach(parts=[Broken()], read_snapshot=lambda: None, list_unready=lambda: ())

    assert program.get("/healthz")[::2] == (503, "the thread publisher has ended\n")


def test_what_cannot_be_read_is_a_sentence(program):
    def fail():
        raise StateError("/var/lib/x: cannot read it")

    program.watched.attach(parts=(), read_snapshot=fail, list_unready=lambda: ())

    assert program.get("/metrics")[::2] == (503, "/var/lib/x: cannot read it\n")


# The server


def test_what_is_not_served_names_what_is(serve):
    assert fetch(serve(one=lambda: OK, two=lambda: OK), "/three")[::2] == (404, "there is /one, /two\n")


def test_a_query_is_no_part_of_the_path(serve):
    assert fetch(serve(one=lambda: OK), "/one?name=x")[0] == 200


def test_head_has_no_body(serve):
    answer = send(serve(one=lambda: OK), b"HEAD /one HTTP/1.1\r\n\r\n")

    assert (answer.endswith(b"\r\n\r\n"), b"Content-Length: 5" in answer) == (True, True)


def test_nothing_can_be_posted(serve):
    assert b" 405 " in send(serve(one=lambda: OK), b"POST /one HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    "data", [b"", b"\r\n\r\n", b"noise\r\n\r\n", b"GET /one HTTP/1.1", b"\x16\x03\x01" + b"\0" * 400]
)
def test_what_is_no_request_gets_no_answer(serve, data):
    assert send(serve(one=lambda: OK), data) == b""


def test_a_head_without_end_is_given_up(serve):
    port = serve(one=lambda: OK)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(b"GET /one HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)
            answer = connection.recv(1)
        except ConnectionError:
            answer = b""

    assert answer == b""


def test_a_client_that_says_nothing_keeps_nobody_waiting(serve):
    port = serve(one=lambda: OK)
    with socket.create_connection(("127.0.0.1", port)):
        assert fetch(port, "/one")[0] == 200


def test_a_silent_client_is_sent_away(serve):
    port = serve(one=lambda: OK)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        assert connection.recv(1) == b""


def test_a_crowd_of_silent_clients_ends(serve):
    port = serve(one=lambda: OK)
    crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    try:
        assert fetch(port, "/one")[0] == 200
    finally:
        for connection in crowd:
            connection.close()


def test_a_crowd_of_silent_clients_keeps_no_probe_from_its_turn():
    server = HttpServer("127.0.0.1", 0, {"/one": lambda _accept: OK}, request_s=600)
    server.start()
    crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
    try:
        assert fetch(server.port, "/one")[0] == 200  # within the time that it would wait itself
    finally:
        for connection in crowd:
            connection.close()
        server.close()


def test_a_fault_of_ours_is_told_and_logged(serve, caplog):
    def fail():
        raise KeyError("a fault")

    status, _, text = fetch(serve(one=fail), "/one")

    assert (status, "log" in text, "KeyError" in caplog.text) == (500, True, True)


def test_a_port_that_is_taken_ends_the_start_with_a_sentence(serve):
    port = serve(one=lambda: OK)

    with pytest.raises(StartError, match=f"port {port}.*--metrics-port"):
        HttpServer("127.0.0.1", port, {})


def test_every_address_is_served_where_none_is_named():
    server = HttpServer("", 0, {"/one": lambda _accept: OK})
    server.start()
    try:
        assert fetch(server.port, "/one")[0] == 200
    finally:
        server.close()


def test_a_closed_server_frees_its_port(serve):
    server = HttpServer("127.0.0.1", 0, {})
    server.start()
    server.close()

    HttpServer("127.0.0.1", server.port, {}).close()


def test_a_closing_server_waits_for_a_request_under_way():
    asked, go = threading.Event(), threading.Event()

    def answer(_accept):
        asked.set()
        go.wait(20)
        return OK

    server = HttpServer("127.0.0.1", 0, {"/one": answer})
    server.start()
    with ThreadPoolExecutor() as clients:
        request = clients.submit(fetch, server.port, "/one")
        asked.wait(20)
        closing = clients.submit(server.close)
        closed_before = until(closing.done, timeout_s=0.2)
        go.set()

    assert (closed_before, closing.exception(), request.result()[0]) == (False, None, 200)


# Reading once for many


def test_what_takes_too_long_is_given_up():
    go = threading.Event()
    flights = SingleFlight(lambda _key: go.wait(10), 0.05)

    with pytest.raises(TimeoutError):
        flights.get("x")
    go.set()


def test_what_takes_too_long_is_begun_once():
    go, calls = threading.Event(), []

    def make(key):
        calls.append(key)
        return go.wait(10)

    flights = SingleFlight(make, 0.02)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            flights.get("x")
    begun = until(lambda: calls)
    go.set()

    assert (begun, calls) == (True, ["x"])


def test_a_failure_is_told_to_who_asked():
    def make(_key):
        raise KeyError("x")

    with pytest.raises(KeyError):
        SingleFlight(make, 5).get("x")
