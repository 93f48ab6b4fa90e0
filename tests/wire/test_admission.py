"""The webhook over HTTPS: TLS from files that are renewed, POST, and bounds in every direction."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from http import HTTPStatus
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from polling import until
from tesela.admission.main import REVIEW_PATH, AdmissionConfig, build_server
from tesela.cli.main import main
from tesela.core.errors import StartError
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.server import ApiServer
from tesela.edge.http.certificate import CertificateFiles
from tesela.edge.http.server import Answer, HttpServer

OK = Answer(HTTPStatus.OK, b"fine\n")
COMMAND = "import sys; from tesela.cli.main import main; sys.exit(main())"
NAME = "tesela-admission.tesela.svc"
KIND = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "kind": KIND, "object": {"spec": {"devices": {}}}},
    }
).encode()


class Pair:
    """A certificate and its key on disk, and the authority that a client trusts."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.renew()

    def renew(self) -> None:
        """Another authority, certificate and key."""
        self.authority = trustme.CA()
        issued = self.authority.issue_cert(NAME)
        for path, blob in ((self.key, issued.private_key_pem), (self.certificate, issued.cert_chain_pems[0])):
            part = path.with_suffix(".part")
            blob.write_to_path(str(part))
            part.replace(path)

    def trust(self) -> ssl.SSLContext:
        """A client's context."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture
def pair():
    with tempfile.TemporaryDirectory(prefix="tesela-") as folder:
        yield Pair(Path(folder))


@pytest.fixture
def port(pair):
    config = AdmissionConfig(certificate=pair.certificate, key=pair.key, port=0, address="127.0.0.1")
    server = build_server(config, EmbeddedCluster())
    server.start()
    yield server.port
    server.close()


def ask(port: int, trust: ssl.SSLContext, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    raw = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust)
    connection.sock = trust.wrap_socket(raw, server_hostname=NAME)
    try:
        connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_review_is_answered(port, pair):
    status, body = ask(port, pair.trust(), "POST", REVIEW_PATH, REVIEW)

    assert (status, json.loads(body)["response"]) == (200, {"uid": "u-1", "allowed": True})


def test_a_large_review_is_answered(port, pair):
    padded = json.loads(REVIEW) | {"padding": "x" * 3_000_000}

    assert ask(port, pair.trust(), "POST", REVIEW_PATH, json.dumps(padded).encode())[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/healthz", None, 200),
        ("GET", "/readyz", None, 200),
        ("GET", REVIEW_PATH, None, 405),
        ("POST", "/healthz", b"", 405),
        ("GET", "/metrics", None, 404),
        ("POST", REVIEW_PATH, b"not a review", 400),
    ],
)
def test_every_request_has_its_answer(port, pair, method, path, body, status):
    assert ask(port, pair.trust(), method, path, body)[0] == status


def test_a_body_that_is_too_large_is_not_read(port, pair):
    trust = pair.trust()
    with trust.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20), server_hostname=NAME) as stream:
        stream.sendall(b"POST %s HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" % REVIEW_PATH.encode())

        assert stream.recv(1) == b""


def test_a_client_that_speaks_no_tls_is_hung_up_on(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        try:
            said = plain.recv(100)
        except ConnectionResetError:
            said = b""

        assert b"HTTP" not in said


def test_silent_clients_do_not_keep_a_review_from_its_turn(pair):
    files = CertificateFiles(pair.certificate, pair.key)
    server = HttpServer("127.0.0.1", 0, {}, posts={"/": lambda _body: OK}, tls=files.get_context)
    server.start()
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(40)]
    try:
        assert ask(server.port, pair.trust(), "POST", "/", b"")[0] == 200
    finally:
        for connection in silent:
            connection.close()
        server.close()


def test_a_renewed_certificate_serves_the_next_connection(port, pair):
    ask(port, pair.trust(), "GET", "/healthz")
    pair.renew()

    assert ask(port, pair.trust(), "GET", "/healthz")[0] == 200


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"half"), lambda path: path.unlink()])
def test_a_pair_that_cannot_be_used_leaves_the_one_before_serving(port, pair, spoil):
    spoil(pair.key)

    assert ask(port, pair.trust(), "GET", "/healthz")[0] == 200


def test_a_file_that_is_gone_is_said_once(pair, caplog):
    files = CertificateFiles(pair.certificate, pair.key)
    pair.key.unlink()
    for _ in range(3):
        files.get_context()

    assert caplog.text.count("the certificate before goes on serving") == 1


def test_a_key_with_a_password_is_said_and_none_is_asked_for(pair):
    loaded = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"secret")
    pair.key.write_bytes(loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted))

    with pytest.raises(StartError, match="cannot be used"):
        CertificateFiles(pair.certificate, pair.key)


def test_a_pair_whose_halves_come_one_after_the_other_is_used_in_the_end(port, pair):
    trust, key = pair.trust(), pair.key.read_bytes()
    pair.key.write_bytes(b"half")
    ask(port, trust, "GET", "/healthz")
    pair.renew()
    assert key != pair.key.read_bytes()

    assert until(lambda: ask(port, pair.trust(), "GET", "/healthz")[0] == 200, 10)


def test_the_program_serves_until_it_is_told_to_end(pair, tmp_path):
    cluster = EmbeddedCluster()
    api = ApiServer(cluster)
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
    kept = socket.socket()  # nobody else gets its port; who binds it likewise may listen there
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = kept.getsockname()[1]
    files = [f"--tls-cert-file={pair.certificate}", f"--tls-private-key-file={pair.key}"]
    told = [*files, f"--port={port}", "--address=127.0.0.1", f"--kubeconfig={kubeconfig}"]
    program = subprocess.Popen([sys.executable, "-c", COMMAND, "admission", *told], stderr=subprocess.DEVNULL)
    try:
        answered = until(lambda: can_ask(port, pair.trust()), 30)
        program.send_signal(signal.SIGTERM)

        assert (answered, program.wait(20)) == (True, 0)
    finally:
        program.kill()
        program.wait()
        kept.close()
        api.close()
        cluster.close()


def can_ask(port: int, trust: ssl.SSLContext) -> bool:
    try:
        return ask(port, trust, "GET", "/readyz")[0] == 200
    except ConnectionRefusedError:
        return False


def test_without_a_certificate_it_does_not_start(tmp_path):
    with pytest.raises(StartError, match=r"tls\.crt and key .*tls\.key cannot be used: No such file"):
        CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_a_key_of_another_certificate_is_said(pair):
    other = trustme.CA().issue_cert(NAME)
    other.private_key_pem.write_to_path(str(pair.key))

    with pytest.raises(StartError, match=r"cannot be used: .*KEY_VALUES_MISMATCH|cannot be used: .*mismatch"):
        CertificateFiles(pair.certificate, pair.key)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--port=0", "--port"),
        ("--port=web", "--port"),
        ("--log-format=xml", "--log-format"),
        ("--log-level=x", "level"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line(capsys, flag, said):
    code = main(["admission", flag])

    assert (code, said in capsys.readouterr().err) == (1, True)
