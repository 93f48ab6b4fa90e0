"""A small HTTP server for metrics, probes and admission reviews: bounded in every direction, and nothing else.

Written on sockets rather than on `http.server`, because a client that sends one byte a second must not keep a thread,
and with it the kubelet's probe, from its turn: a request has one deadline for all of its bytes, handshake and body
included, one answer, and its connection is closed. Where all turns are taken, whoever has been silent for longest loses
its own. Nothing here needs a session.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from tesela.core.errors import StartError

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_MOST_CONNECTIONS: Final = 16
_BACKLOG: Final = 64
_MOST_HEADER_BYTES: Final = 16384
_MOST_BODY_BYTES: Final = 4 * 2**20
"""More than an AdmissionReview can be: the API server takes requests of 3 MiB at most, and one has the object twice."""
_REQUEST_S: Final = 3.0
_ANSWER_S: Final = 10.0
_FINISH_S: Final = 3.0
_ACCEPT_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What one path answers."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """Serves `routes` on `address`:`port` until closed: GET and HEAD.

    A route is a function of the Accept header, for its path. `posts` are paths that take POST instead, as functions of
    the body. An `address` of "" is every address, IPv6 and IPv4; a `port` of 0 any free one, and `port` says which. A
    route is to return within seconds, but only its own client waits for it. `tls`, where it is there, is asked for each
    connection.
    """

    def __init__(
        self,
        address: str,
        port: int,
        routes: Mapping[str, Callable[[str], Answer]],
        *,
        posts: Mapping[str, Callable[[bytes], Answer]] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        request_s: float = _REQUEST_S,
        flag: str = "--metrics-port",
    ) -> None:
        """Binds the port. A request is to be there within `request_s`. StartError: the port cannot be had."""
        self._routes = routes
        self._posts = posts or {}
        self._tls = tls
        self._request_s = request_s
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._closed = False
        self._guard = threading.Lock()
        self._silent: dict[socket.socket, None] = {}
        try:
            self._socket = _listen(address, port)
        except OSError as error:
            where = address or "every address"
            raise StartError(
                f"cannot serve on {where}, port {port}: {error.strerror or error}; choose another {flag}, or another "
                "address"
            ) from error
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="http", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Take no more connections; return when the requests under way have their answers, after 3 s at most."""
        deadline_s = time.monotonic() + _FINISH_S
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        if self._thread.ident is not None:
            self._thread.join(_FINISH_S)
        for _ in range(_MOST_CONNECTIONS):  # who still has a turn gives it back with its answer
            self._room.acquire(timeout=max(0.0, deadline_s - time.monotonic()))

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                _LOG.warning("a connection to port %d could not be taken: %s", self.port, error)
                time.sleep(_ACCEPT_PAUSE_S)  # too many open files, say: it may pass
                continue
            if not self._make_room():
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="http-request", daemon=True).start()

    def _make_room(self) -> bool:
        """Takes a turn; where there is none, that of the connection which has been silent for longest."""
        if self._room.acquire(blocking=False):
            return True
        with self._guard:
            oldest = next(iter(self._silent), None)
            if oldest is not None:
                del self._silent[oldest]
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # wakes the thread that reads it, also below TLS
        return self._room.acquire(timeout=2 * self._request_s)

    def _listen_to(self, connection: socket.socket) -> _Request | None:
        with self._guard:
            self._silent[connection] = None
        try:
            return _read_request(connection, self._request_s)
        finally:
            with self._guard:
                self._silent.pop(connection, None)

    def _wrap(self, connection: socket.socket) -> socket.socket:
        if self._tls is None:
            return connection
        return self._tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, self._wrap(connection) as wrapped:
                request = self._listen_to(wrapped)
                if request is not None:
                    wrapped.settimeout(_ANSWER_S)
                    wrapped.sendall(self._answer(request))
                    socket.socket.shutdown(wrapped, socket.SHUT_WR)
        except OSError:
            pass  # the client went away, or is too slow for us
        finally:
            self._room.release()

    def _answer(self, request: _Request) -> bytes:
        answer = self._find_answer(request)
        head = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
            f"Date: {formatdate(usegmt=True)}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if request.method == "HEAD" else answer.body)

    def _find_answer(self, request: _Request) -> Answer:
        post, route = self._posts.get(request.path), self._routes.get(request.path)
        if request.method == "POST" and post is not None:
            return _ask(request.path, post, request.body)
        if request.method not in {"GET", "HEAD"} or post is not None:
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"POST only\n" if post else b"GET and HEAD only\n")
        if route is None:
            return Answer(HTTPStatus.NOT_FOUND, f"there is {', '.join([*self._routes, *self._posts])}\n".encode())
        return _ask(request.path, route, request.accept)


def _ask(path: str, route: Callable[[T], Answer], asked: T) -> Answer:
    try:
        return route(asked)
    except Exception:  # noqa: BLE001 -- logged with its traceback
        _LOG.exception("%s cannot be answered", path)
        return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"a fault of the driver; its log has the traceback\n")


class SingleFlight(Generic[T]):
    """Runs `make` in a thread of its own, one at a time for each key: all who ask meanwhile get the same answer.

    So neither ten scrapers nor a disk that hangs take more than one thread. There are to be few keys.
    """

    def __init__(self, make: Callable[[str], T], timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s
        self._guard = threading.Lock()
        self._flights: dict[str, Future[T]] = {}

    def get(self, key: str) -> T:
        """What `make` returns for `key`. TimeoutError: it takes longer than the limit; whatever `make` raises."""
        with self._guard:
            flight = self._flights.get(key)
            if flight is None or flight.done():
                flight = self._flights[key] = Future()
                threading.Thread(target=self._run, args=(key, flight), name="metrics", daemon=True).start()
        return flight.result(self._timeout_s)

    def _run(self, key: str, flight: Future[T]) -> None:
        try:
            flight.set_result(self._make(key))
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread of each that asked
            flight.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    accept: str
    body: bytes = b""


def _listen(address: str, port: int) -> socket.socket:
    if address:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # built in, and switched off on this node
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


def _read_request(connection: socket.socket, within_s: float) -> _Request | None:
    """The request, None where it is none, is too large, or does not come in time."""
    deadline_s = time.monotonic() + within_s
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = _receive(connection, deadline_s)
        if not chunk or len(data) > _MOST_HEADER_BYTES:
            return None
        data += chunk
    head, _, begun = data.partition(b"\r\n\r\n")
    first, *headers = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        return None
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdecimal() and int(length) <= _MOST_BODY_BYTES):
        return None
    body = bytearray(begun)
    while len(body) < int(length):
        chunk = _receive(connection, deadline_s)
        if not chunk:
            return None
        body += chunk
    path = words[1].partition("?")[0]
    return _Request(method=words[0], path=path, accept=fields.get("accept", ""), body=bytes(body[: int(length)]))


def _receive(connection: socket.socket, deadline_s: float) -> bytes:
    """What comes next; nothing where the client is done, or its time is up."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        return b""
    connection.settimeout(left_s)
    return connection.recv(65536)
