"""`Kube` over the official client, used at its lowest level: its configuration and its REST connection, raw JSON.

The typed models are left out on purpose: they cost memory and time and drop the fields they do not know. No retries
and no rate limit live here (see `retry`); a call is one request, bounded by its timeout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from http import HTTPStatus
from threading import Lock
from time import monotonic
from typing import Any, cast
from urllib.parse import urlencode

from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3 import HTTPResponse, Timeout
from urllib3.exceptions import HTTPError, ProtocolError

from tesela import __version__
from tesela.core.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable
from tesela.edge.kube.paths import collection_path, name_request, namespace_of, object_path
from tesela.edge.kube.port import Json, ObjectList, Resource, WatchEvent
from tesela.edge.telemetry.port import SILENT, Telemetry

POOL_SIZE = 20  # 16 workers and a few watches, each with a connection that stays open
PAGE_SIZE = 500
MESSAGE_LIMIT = 256
CHUNK_BYTES = 1 << 16
WATCH_SLACK_S = 5.0  # the server ends a watch itself; only a dead connection needs this


class KubeClient:
    """`Kube` on a real API server. Safe for many threads; `close` ends every watch and every later call.

    `telemetry` hears of every request and of how it was answered.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_s: float = 10.0,
        page_size: int = PAGE_SIZE,
        telemetry: Telemetry = SILENT,
    ) -> None:
        configuration.connection_pool_maxsize = POOL_SIZE
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)
        self._timeout_s = timeout_s
        self._page_size = page_size
        self._telemetry = telemetry
        self._lock = Lock()
        self._watches: set[HTTPResponse] = set()
        self._closed = False

    def close(self) -> None:
        """Wakes and ends every running watch, and refuses later calls with ApiUnavailable."""
        with self._lock:
            self._closed = True
            watches = list(self._watches)
        for response in watches:
            _shut_down(response)
        self._rest.close()

    def get_server_version(self) -> str:
        return str(self._call("GET", "/version")["gitVersion"])

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        return self._call("GET", object_path(resource, name, namespace))

    def list(self, resource: Resource, namespace: str | None = None, field_selector: str | None = None) -> ObjectList:
        path = collection_path(resource, namespace)
        query = {"limit": str(self._page_size)}
        if field_selector:
            query["fieldSelector"] = field_selector
        items: list[Json] = []
        while True:
            page = self._call("GET", path, query)
            items.extend(page.get("items") or [])
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                break
            query["continue"] = metadata["continue"]
        for item in items:
            # a list names its kind once; every other answer names it on the object
            item["apiVersion"], item["kind"] = resource.api_version, resource.kind
        return ObjectList(items=tuple(items), resource_version=str(metadata.get("resourceVersion", "")))

    def create(self, resource: Resource, obj: Json) -> Json:
        return self._call("POST", collection_path(resource, namespace_of(resource, obj)), body=obj)

    def replace(self, resource: Resource, obj: Json) -> Json:
        return self._call("PUT", self._path_of(resource, obj), body=obj)

    def replace_status(self, resource: Resource, obj: Json) -> Json:
        return self._call("PUT", self._path_of(resource, obj, "status"), body=obj)

    def apply_status(self, resource: Resource, obj: Json, *, field_manager: str) -> Json:
        named = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        query = {"fieldManager": field_manager, "force": "true"}
        return self._call("PATCH", self._path_of(resource, obj, "status"), query, body=named)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if given := {key: value for key, value in preconditions.items() if value is not None}:
            options["preconditions"] = given
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        self._call("DELETE", object_path(resource, name, namespace), body=options)

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        field_selector: str | None = None,
        *,
        resource_version: str,
        timeout_s: float,
    ) -> Iterator[WatchEvent]:
        path = collection_path(resource, namespace)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, math.ceil(timeout_s))),
        }
        if field_selector:
            query["fieldSelector"] = field_selector
        response = self._open("GET", path, query, None, (self._timeout_s, timeout_s + WATCH_SLACK_S))
        self._begin_watch(response)
        try:
            _raise_for_status(response, _body(response, self._timeout_s) if response.status >= 400 else b"")
            for line in _lines(response, monotonic() + timeout_s):
                yield _watch_event(json.loads(line))
        except (HTTPError, OSError, ValueError) as error:
            if not self._closed:
                raise _unavailable("watch", path, error) from error
        finally:
            with self._lock:
                self._watches.discard(response)
            response.close()

    def _begin_watch(self, response: HTTPResponse) -> None:
        with self._lock:
            closed = self._closed
            self._watches.add(response)
        if closed:
            response.close()

    def _path_of(self, resource: Resource, obj: Json, subresource: str = "") -> str:
        name = (obj.get("metadata") or {}).get("name", "")
        return object_path(resource, name, namespace_of(resource, obj), subresource)

    def _call(self, method: str, path: str, query: dict[str, str] | None = None, body: Json | None = None) -> Json:
        """One request and its whole answer, parsed; within the timeout, body included."""
        deadline = monotonic() + self._timeout_s
        response = self._open(method, path, query, body, (self._timeout_s, self._timeout_s))
        try:
            data = _body(response, deadline - monotonic())
        except (HTTPError, OSError) as error:
            response.close()
            raise _unavailable(method, path, error) from error
        _raise_for_status(response, data)
        try:
            return cast("Json", json.loads(data))
        except ValueError as error:
            raise ApiError(response.status, "", f"{method} {path}: the answer is not JSON") from error

    def _open(
        self, method: str, path: str, query: dict[str, str] | None, body: Json | None, timeout: tuple[float, float]
    ) -> HTTPResponse:
        """Sends one request; a GET that hit a connection which the server had just closed is sent once more."""
        if self._closed:
            raise ApiUnavailable(0, "Closed", f"{method} {path}: this client is closed")
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        code = 0
        try:
            try:
                response = self._send(method, url, body, timeout)
            except ProtocolError:
                if method != "GET":
                    raise
                response = self._send(method, url, body, timeout)
            code = response.status
            return response
        except (HTTPError, OSError) as error:
            raise _unavailable(method, path, error) from error
        finally:
            self._telemetry.observe_api_request(*name_request(method, path, query or ()), code)

    def _send(self, method: str, url: str, body: Json | None, timeout: tuple[float, float]) -> HTTPResponse:
        headers = {
            "Accept": "application/json",
            # JSON is YAML; PATCH is only ever an apply
            "Content-Type": "application/apply-patch+yaml" if method == "PATCH" else "application/json",
            "User-Agent": f"tesela/{__version__}",
        }
        if token := self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        # not through the REST object's own `request`: it would spell the JSON with spaces, which count as bytes of
        # opaque parameters and make slices a tenth longer
        data = None if body is None else json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        limits = Timeout(connect=timeout[0], read=timeout[1])
        answer = self._rest.pool_manager.request(
            method, url, body=data, headers=headers, timeout=limits, preload_content=False
        )
        return cast("HTTPResponse", answer)


def _shut_down(response: HTTPResponse) -> None:
    """Unblocks the thread that reads `response`; closing the file object under it would wait for it."""
    try:
        response.shutdown()
    except (ValueError, OSError):
        # already at its end
        response.close()


def _body(response: HTTPResponse, within_s: float) -> bytes:
    """All of the body, in at most `within_s` however slowly it drips; the connection returns to its pool."""
    deadline = monotonic() + within_s
    chunks = []
    while chunk := response.read1(CHUNK_BYTES):
        chunks.append(chunk)
        if monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    response.release_conn()
    return b"".join(chunks)


def _lines(response: HTTPResponse, deadline: float) -> Iterator[bytes]:
    rest = b""
    while monotonic() < deadline + WATCH_SLACK_S and (chunk := response.read1(CHUNK_BYTES)):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)


def _watch_event(event: Json) -> WatchEvent:
    kind, obj = event["type"], event["object"]
    if kind == "ERROR":
        raise _error(int(obj.get("code") or 0), obj, None)
    return WatchEvent(type=kind, object=obj)


def _raise_for_status(response: HTTPResponse, data: bytes) -> None:
    if response.status < HTTPStatus.BAD_REQUEST:
        return
    try:
        parsed: Any = json.loads(data)
    except ValueError:
        parsed = None
    status = parsed if isinstance(parsed, dict) and parsed.get("kind") == "Status" else {}
    raise _error(response.status, status, response.headers.get("Retry-After"))


def _error(code: int, status: Json, retry_after: str | None) -> ApiError:
    """The leaf of ApiError for an HTTP code; its text is the Status' message alone, never another body."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the API server answered {code} without a reason")[:MESSAGE_LIMIT]
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
        return ApiUnavailable(code, reason, message, seconds)
    leaves = {
        HTTPStatus.NOT_FOUND: ApiNotFound,
        HTTPStatus.CONFLICT: ApiConflict,
        HTTPStatus.GONE: ApiGone,
    }
    return leaves.get(HTTPStatus(code), ApiError)(code, reason, message) if code else ApiError(0, reason, message)


def _unavailable(method: str, path: str, error: Exception) -> ApiUnavailable:
    cause = str(error).splitlines()[0][:MESSAGE_LIMIT] if str(error) else ""
    return ApiUnavailable(0, "", f"{method} {path}: no answer from the API server: {type(error).__name__} {cause}")
