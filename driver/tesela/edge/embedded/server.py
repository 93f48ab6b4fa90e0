"""The embedded cluster behind HTTP on the loopback, for processes that the test or demo starts and may kill.

Speaks the part of the API's HTTP that `edge/kube/client.py` uses: paths, JSON, Status errors, pages, watch streams.
Plain text and without authentication, so it never listens on another address than the loopback.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tesela.core.errors import ApiError, ApiNotFound
from tesela.edge.embedded.kinds import KINDS
from tesela.edge.kube.port import Json, Kube, Resource, WatchEvent

JOIN_TIMEOUT_S = 5.0


class ApiServer:
    """Serves `kube` at `url` until `close`. `kube` is any backend: the cluster, or one with faults around it."""

    def __init__(self, kube: Kube) -> None:
        class Handler(_Handler):
            backend = kube

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="api-server")
        self._thread.start()

    def write_kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig that points here (JSON is YAML)."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url}}],
            "users": [{"name": "embedded", "user": {}}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
            "current-context": "embedded",
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return path

    def close(self) -> None:
        """Stops accepting; requests under way end with their watch's timeout or their connection."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(JOIN_TIMEOUT_S)


class _Target:
    """What a URL names."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        self.query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        parts = [unquote(part) for part in split.path.strip("/").split("/")]
        self.path = split.path
        group_version, rest = ("", parts[2:]) if parts[0] == "api" else (f"{parts[1]}" if parts[1:] else "", parts[3:])
        self.namespace: str | None = None
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            self.namespace, rest = rest[1], rest[2:]
        self.resource = _resource(group_version, rest[0] if rest else "", split.path)
        self.name = rest[1] if len(rest) > 1 else ""
        self.subresource = rest[2] if len(rest) > 2 else ""


def _resource(group: str, plural: str, path: str) -> Resource:
    for resource in KINDS:
        if (resource.group, resource.plural) == (group, plural):
            return resource
    raise ApiNotFound(404, "NotFound", f"the server could not find the requested resource {path}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet where a client went away in the middle: that is what this server is for."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    backend: Kube
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._answer(self._read)

    def do_POST(self) -> None:
        self._answer(lambda target, body: self.backend.create(target.resource, body), created=True)

    def do_PUT(self) -> None:
        self._answer(self._replace)

    def do_PATCH(self) -> None:
        self._answer(self._apply)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Silent: the caller's client reports what matters."""

    def _answer(self, verb: Any, *, created: bool = False) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        try:
            if self.path == "/version":
                self._send(200, {"gitVersion": self.backend.get_server_version()})
                return
            answer = verb(_Target(self.path), body)
        except ApiError as error:
            self._send(error.status or 503, _status(error), getattr(error, "retry_after_s", None))
            return
        if answer is not None:
            self._send(201 if created else 200, answer)

    def _read(self, target: _Target, _body: Json) -> Json | None:
        if target.name:
            return self.backend.get(target.resource, target.name, target.namespace)
        if target.query.get("watch") == "true":
            self._stream(target)
            return None
        return self._list(target)

    def _replace(self, target: _Target, body: Json) -> Json:
        if target.subresource == "status":
            return self.backend.replace_status(target.resource, body)
        return self.backend.replace(target.resource, body)

    def _apply(self, target: _Target, body: Json) -> Json:
        if target.subresource != "status" or self.headers.get("Content-Type") != "application/apply-patch+yaml":
            raise ApiError(415, "UnsupportedMediaType", "of all patches, only the apply of a status is served here")
        return self.backend.apply_status(target.resource, body, field_manager=target.query.get("fieldManager", ""))

    def _delete(self, target: _Target, body: Json) -> Json:
        given = body.get("preconditions") or {}
        self.backend.delete(
            target.resource,
            target.name,
            target.namespace,
            uid=given.get("uid"),
            resource_version=given.get("resourceVersion"),
            grace_period_s=body.get("gracePeriodSeconds"),
        )
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _list(self, target: _Target) -> Json:
        """A page: `continue` is the number of objects given already."""
        found = self.backend.list(target.resource, target.namespace, target.query.get("fieldSelector"))
        start, limit = int(target.query.get("continue", 0)), int(target.query.get("limit", 0)) or len(found.items) or 1
        metadata = {"resourceVersion": found.resource_version}
        if start + limit < len(found.items):
            metadata["continue"] = str(start + limit)
        # as the real server: items of a list do not name their kind
        page = [
            {key: value for key, value in item.items() if key not in {"kind", "apiVersion"}}
            for item in found.items[start : start + limit]
        ]
        kind = f"{target.resource.kind}List"
        return {"kind": kind, "apiVersion": target.resource.api_version, "metadata": metadata, "items": page}

    def _stream(self, target: _Target) -> None:
        events = self.backend.watch(
            target.resource,
            target.namespace,
            target.query.get("fieldSelector"),
            resource_version=target.query.get("resourceVersion", ""),
            timeout_s=float(target.query.get("timeoutSeconds", 60)),
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            try:
                for event in events:
                    self._chunk(_event_line(event))
            except ApiError as error:
                self._chunk(json.dumps({"type": "ERROR", "object": _status(error)}).encode() + b"\n")
            self._chunk(b"")
        except (BrokenPipeError, ConnectionResetError):
            # the watcher went away
            self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, code: int, answer: Json, retry_after_s: float | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if retry_after_s is not None:
            self.send_header("Retry-After", str(int(retry_after_s)))
        self.end_headers()
        self.wfile.write(data)


def _event_line(event: WatchEvent) -> bytes:
    return json.dumps({"type": event.type, "object": event.object}).encode() + b"\n"


def _status(error: ApiError) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": error.status or 503,
        "reason": error.reason,
        "message": error.message,
    }
