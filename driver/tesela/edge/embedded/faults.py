"""`FlakyKube`: any Kubernetes backend with faults in front, given as data, so that tests need no mocks.

Faults are taken in order; each is used up by the calls that it hits. Watches are calls too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import TypeVar

from tesela.core.errors import ApiError, ApiUnavailable
from tesela.edge.kube.port import Json, Kube, ObjectList, Resource, WatchEvent

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The next `calls` calls of `verb` (any if None) on `plural` (any if None) wait `latency_s`, then end in `error`.

    Without `error` they are only late. `after` performs the call before it fails: an answer that got lost.
    """

    calls: int = 1
    verb: str | None = None
    plural: str | None = None
    error: ApiError | None = None
    latency_s: float = 0.0
    after: bool = False


def unavailable(calls: int = 1, verb: str | None = None, plural: str | None = None, *, after: bool = False) -> Fault:
    """The API server does not answer `calls` times."""
    error = ApiUnavailable(0, "", "no answer from the API server: injected fault")
    return Fault(calls=calls, verb=verb, plural=plural, error=error, after=after)


class FlakyKube:
    """`Kube` that passes calls to `inner`, faults first. `calls` records (verb, plural) of every call."""

    def __init__(self, inner: Kube, *faults: Fault) -> None:
        self._inner = inner
        self._lock = Lock()
        self._faults = list(faults)
        self._stop = Event()
        self.calls: list[tuple[str, str]] = []

    def inject(self, fault: Fault) -> None:
        """Adds a fault behind those not used up."""
        with self._lock:
            self._faults.append(fault)

    def close(self) -> None:
        """Ends the waits of late calls."""
        self._stop.set()

    def get_server_version(self) -> str:
        return self._call("get_server_version", "", self._inner.get_server_version)

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        return self._call("get", resource.plural, lambda: self._inner.get(resource, name, namespace))

    def list(self, resource: Resource, namespace: str | None = None, field_selector: str | None = None) -> ObjectList:
        return self._call("list", resource.plural, lambda: self._inner.list(resource, namespace, field_selector))

    def create(self, resource: Resource, obj: Json) -> Json:
        return self._call("create", resource.plural, lambda: self._inner.create(resource, obj))

    def replace(self, resource: Resource, obj: Json) -> Json:
        return self._call("replace", resource.plural, lambda: self._inner.replace(resource, obj))

    def replace_status(self, resource: Resource, obj: Json) -> Json:
        return self._call("replace_status", resource.plural, lambda: self._inner.replace_status(resource, obj))

    def apply_status(self, resource: Resource, obj: Json, *, field_manager: str) -> Json:
        def call() -> Json:
            return self._inner.apply_status(resource, obj, field_manager=field_manager)

        return self._call("apply_status", resource.plural, call)

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
        def call() -> None:
            self._inner.delete(
                resource,
                name,
                namespace,
                uid=uid,
                resource_version=resource_version,
                grace_period_s=grace_period_s,
            )

        self._call("delete", resource.plural, call)

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        field_selector: str | None = None,
        *,
        resource_version: str,
        timeout_s: float,
    ) -> Iterator[WatchEvent]:
        def call() -> Iterator[WatchEvent]:
            return self._inner.watch(
                resource, namespace, field_selector, resource_version=resource_version, timeout_s=timeout_s
            )

        yield from self._call("watch", resource.plural, call)

    def _call(self, verb: str, plural: str, call: Callable[[], T]) -> T:
        fault = self._next_fault(verb, plural)
        if fault is None:
            return call()
        if fault.latency_s:
            self._stop.wait(fault.latency_s)
        if fault.error is None:
            return call()
        if fault.after:
            call()
        raise fault.error

    def _next_fault(self, verb: str, plural: str) -> Fault | None:
        with self._lock:
            self.calls.append((verb, plural))
            for index, fault in enumerate(self._faults):
                if fault.calls > 0 and fault.verb in {None, verb} and fault.plural in {None, plural}:
                    self._faults[index] = replace(fault, calls=fault.calls - 1)
                    return fault
        return None
