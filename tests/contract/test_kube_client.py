"""What only the client over HTTP does: errors by status, timeouts, retries, configuration, watches that end."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from contract.kube_backends import refusal
from contract.kube_objects import resource_slice
from polling import until
from tesela import __version__
from tesela.core.errors import (
    ApiConflict,
    ApiError,
    ApiGone,
    ApiNotFound,
    ApiUnavailable,
    StartError,
    TryAgain,
)
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.server import ApiServer
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import NAMESPACES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource


class Canned:
    """An HTTP server that gives the same answer to everything and notes what it was asked."""

    def __init__(self, status: int = 200, body: bytes = b"{}", headers: dict[str, str] | None = None) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.peers: set[tuple[str, int]] = set()
        canned = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                canned.requests.append((self.command, self.path, dict(self.headers), sent))
                canned.peers.add(self.client_address)
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args) -> None:
                pass

        for verb in ("GET", "POST", "PUT", "DELETE"):
            setattr(Handler, f"do_{verb}", Handler.answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def status_body(code: int, message: str = "it is so", reason: str = "Because") -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message, "reason": reason}).encode()


def write_kubeconfig(path: Path, port: int, **user) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


@pytest.fixture
def serve(tmp_path):
    """Starts a canned server and a client of it; both end with the test."""
    opened: list[Canned | KubeClient] = []

    def start(*args, timeout_s: float = 5.0, user: dict[str, str] | None = None, **kwargs) -> tuple[Canned, KubeClient]:
        server = Canned(*args, **kwargs)
        config = load_config(write_kubeconfig(tmp_path / "kubeconfig", server.port, **(user or {})))
        client = KubeClient(config, timeout_s=timeout_s)
        opened.extend((client, server))
        return server, client

    yield start
    for part in opened:
        part.close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "leaf"),
    [
        (400, ApiError),
        (401, ApiError),
        (403, ApiError),
        (404, ApiNotFound),
        (409, ApiConflict),
        (410, ApiGone),
        (422, ApiError),
        (429, ApiUnavailable),
        (500, ApiUnavailable),
        (503, ApiUnavailable),
        (504, ApiUnavailable),
    ],
)
def test_each_status_has_its_leaf(serve, status, leaf):
    _, client = serve(status, status_body(status))
    assert type(refusal(lambda: client.get(NAMESPACES, "a"))) is leaf


def test_an_error_holds_the_servers_message_and_reason(serve):
    _, client = serve(404, status_body(404, 'pods "x" not found', "NotFound"))
    error = refusal(lambda: client.get(NAMESPACES, "a"))
    assert (error.status, error.reason, error.message) == (404, "NotFound", 'pods "x" not found')


def test_a_long_message_is_cut(serve):
    _, client = serve(400, status_body(400, "x" * 1000))
    assert len(refusal(lambda: client.get(NAMESPACES, "a")).message) == 256


@pytest.mark.parametrize("body", [b"<html>token=secret</html>", b'{"token": "secret"}', b'"secret"', b""])
def test_a_body_that_is_no_status_stays_out_of_the_error(serve, body):
    _, client = serve(403, body)
    assert "secret" not in str(refusal(lambda: client.get(NAMESPACES, "a")))


def test_an_answer_that_is_not_json(serve):
    _, client = serve(200, b"<html>")
    assert "not JSON" in str(refusal(lambda: client.get(NAMESPACES, "a")))


def test_retry_after_is_kept(serve):
    _, client = serve(429, status_body(429), {"Retry-After": "7"})
    error = refusal(lambda: client.get(NAMESPACES, "a"))
    assert isinstance(error, ApiUnavailable)
    assert error.retry_after_s == 7.0


def test_a_refused_connection_is_unavailable(tmp_path):
    with socket.socket() as deaf:  # which keeps its port from others, and listens to nobody
        deaf.bind(("127.0.0.1", 0))
        client = KubeClient(load_config(write_kubeconfig(tmp_path / "k", deaf.getsockname()[1])))
        assert type(refusal(lambda: client.get(NAMESPACES, "a"))) is ApiUnavailable


def test_a_silent_server_is_unavailable_within_the_timeout(tmp_path, silent_port):
    client = KubeClient(load_config(write_kubeconfig(tmp_path / "k", silent_port)), timeout_s=0.2)
    began = time.monotonic()
    error = refusal(lambda: client.get(NAMESPACES, "a"))
    assert (type(error), time.monotonic() - began < 2) == (ApiUnavailable, True)


def test_a_server_that_drips_is_cut_off(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not stop.wait(0.05):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = Thread(target=drip)
        thread.start()
        port = listener.getsockname()[1]
        client = KubeClient(load_config(write_kubeconfig(tmp_path / "k", port)), timeout_s=1)
        error = refusal(lambda: client.get(NAMESPACES, "a"))
        stop.set()
        thread.join(5)
    assert "took too long" in str(error)


def test_unavailable_is_worth_another_try(serve):
    _, client = serve(503, status_body(503))
    assert isinstance(refusal(lambda: client.get(NAMESPACES, "a")), TryAgain)


def test_a_closed_client_refuses(serve):
    _, client = serve()
    client.close()
    assert "closed" in str(refusal(lambda: client.get(NAMESPACES, "a")))


# --- requests --------------------------------------------------------------------------------------------------------


def test_the_user_agent_names_tesela(serve):
    server, client = serve()
    client.get(NAMESPACES, "a")
    assert server.requests[0][2]["User-Agent"] == f"tesela/{__version__}"


def test_connections_are_kept(serve):
    server, client = serve()
    for _ in range(3):
        client.get(NAMESPACES, "a")
    assert len(server.peers) == 1


def test_names_are_quoted_in_paths(serve):
    server, client = serve()
    client.get(Resource("example.com", "v1", "things", "Thing", True), "a/b?c", "n s")
    assert server.requests[0][1] == "/apis/example.com/v1/namespaces/n%20s/things/a%2Fb%3Fc"


def test_bodies_are_compact_utf8(serve):
    server, client = serve()
    client.create(RESOURCE_SLICES, {"metadata": {"name": "é"}})
    assert server.requests[0][3] == '{"metadata":{"name":"é"}}'.encode()


def test_preconditions_and_grace_travel_in_the_body(serve):
    server, client = serve()
    client.delete(RESOURCE_CLAIMS, "a", "b", uid="u", resource_version="7", grace_period_s=0)
    sent = json.loads(server.requests[0][3])
    assert (sent["preconditions"], sent["gracePeriodSeconds"]) == ({"uid": "u", "resourceVersion": "7"}, 0)


@pytest.mark.parametrize("name", ["", None])
def test_an_empty_name_never_becomes_a_collection(serve, name):
    server, client = serve()
    refusal(lambda: client.delete(RESOURCE_CLAIMS, name, "b"))
    assert server.requests == []


# --- configuration ---------------------------------------------------------------------------------------------------


def test_a_token_is_sent(serve):
    server, client = serve(user={"token": "abc"})
    client.get(NAMESPACES, "a")
    assert server.requests[0][2]["Authorization"] == "Bearer abc"


def test_a_token_file_is_read(serve, tmp_path):
    (tmp_path / "token").write_text("first\n", encoding="ascii")
    server, client = serve(user={"tokenFile": "token"})
    client.get(NAMESPACES, "a")
    assert server.requests[0][2]["Authorization"] == "Bearer first"


def test_a_missing_kubeconfig_says_what_to_do(tmp_path):
    with pytest.raises(StartError, match="check the file"):
        load_config(str(tmp_path / "absent"))


def test_a_malformed_kubeconfig_says_what_to_do(tmp_path):
    (tmp_path / "k").write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(StartError, match="check the file"):
        load_config(str(tmp_path / "k"))


def test_outside_a_cluster_a_kubeconfig_is_asked_for(tmp_path):
    with pytest.raises(StartError, match="--kubeconfig"):
        load_config(None, environ={}, service_account_dir=tmp_path)


def in_cluster(folder: Path, token: str = "abc") -> object:
    (folder / "token").write_text(token, encoding="ascii")
    (folder / "ca.crt").write_text("certificate", encoding="ascii")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    return load_config(None, environ=environ, service_account_dir=folder)


def test_in_cluster_the_services_address_is_used(tmp_path):
    config = in_cluster(tmp_path)
    assert (config.host, config.ssl_ca_cert) == ("https://10.0.0.1:443", str(tmp_path / "ca.crt"))


def test_in_cluster_the_mounted_token_is_used(tmp_path):
    assert in_cluster(tmp_path).get_api_key_with_prefix("BearerToken") == "bearer abc"


# --- watches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster():
    made = EmbeddedCluster()
    yield made
    made.close()


@pytest.fixture
def client(cluster, tmp_path):
    server = ApiServer(cluster)
    made = KubeClient(load_config(str(server.write_kubeconfig(tmp_path / "kubeconfig"))))
    yield made
    made.close()
    cluster.close()
    server.close()


def test_close_ends_a_watch_that_waits(client):
    version = client.list(RESOURCE_SLICES).resource_version
    seen = []
    started = Event()

    def watch() -> None:
        started.set()
        seen.extend(client.watch(RESOURCE_SLICES, resource_version=version, timeout_s=60))
        seen.append("ended")

    thread = Thread(target=watch)
    thread.start()
    started.wait(5)
    until(lambda: client._watches)
    client.close()
    thread.join(10)
    assert seen == ["ended"]


def test_a_closed_generator_closes_its_connection(client):
    created = client.create(RESOURCE_SLICES, resource_slice())
    version = str(int(created["metadata"]["resourceVersion"]) - 1)
    stream = client.watch(RESOURCE_SLICES, resource_version=version, timeout_s=60)
    next(stream)
    stream.close()
    assert not client._watches


def test_a_watch_reads_long_objects_whole(client):
    devices = [{"name": f"gpu-{i}", "attributes": {"x": {"string": "y" * 64}}} for i in range(128)]
    created = client.create(RESOURCE_SLICES, resource_slice(devices=devices))
    version = str(int(created["metadata"]["resourceVersion"]) - 1)
    stream = client.watch(RESOURCE_SLICES, resource_version=version, timeout_s=60)
    assert next(stream).object == created
    stream.close()
