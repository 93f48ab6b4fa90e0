"""What goes on while something else is done: claims that come and go, slices that must not vanish, values that change.

They are started from the thread that is in the cluster's network, which they inherit.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, Self, TypeVar

from e2e.harness.cluster import Cluster
from e2e.harness.driver import DRIVER, is_pool_complete, list_devices
from e2e.harness.pods import Namespace
from tesela.edge.kube.port import RESOURCE_SLICES, Json

STOP_S = 120  # of one turn
T = TypeVar("T")


class _Watching(ABC):
    """A thread that takes turns from `with` to its end, which raises what went wrong."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._running = self._threads.submit(self._run)
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self._stopped.set()
        wait([self._running], timeout=STOP_S)
        self._threads.shutdown(wait=False)
        if error is None:
            self._running.result(0)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.turn()

    @abstractmethod
    def turn(self) -> None:
        """One of them, bounded in time."""


class Load(_Watching):
    """One pod after the other of `render`, each until it runs; `took_s` has how long each took."""

    def __init__(self, namespace: Namespace, lane: str, render: Callable[[str], Json]) -> None:
        super().__init__()
        self.took_s: list[float] = []
        self._namespace = namespace
        self._lane = lane
        self._render = render

    def turn(self) -> None:
        name = f"{self._lane}-{len(self.took_s)}"
        began = time.monotonic()
        self._namespace.apply(self._render(name))
        self._namespace.wait_running(name)
        self.took_s.append(time.monotonic() - began)
        self._namespace.end(name)


class SliceWatch(_Watching):
    """Every change of the node's slices, and the fewest devices of a complete pool that were to be seen meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._kube = cluster.kube
        self._cluster = cluster
        first = self._kube.list(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER}")
        self._version = first.resource_version
        self.before = set(list_devices(cluster))
        self.events: list[str] = []
        self.fewest = len(self.before)

    def turn(self) -> None:
        for event in self._kube.watch(
            RESOURCE_SLICES,
            field_selector=f"spec.driver={DRIVER}",
            resource_version=self._version,
            timeout_s=2,
        ):
            self._version = event.object["metadata"]["resourceVersion"]
            if event.type != "BOOKMARK":
                self.events.append(event.type)
        if is_pool_complete(self._cluster):
            self.fewest = min(self.fewest, len(list_devices(self._cluster)))


class Changes(_Watching, Generic[T]):
    """The values of `read`, each time it is another one than before, and when that was (monotonic seconds)."""

    def __init__(self, read: Callable[[], T]) -> None:
        super().__init__()
        self.values: list[T] = []
        self.since_s: list[float] = []
        self._read = read

    def turn(self) -> None:
        value = self._read()
        if not self.values or self.values[-1] != value:
            self.values.append(value)
            self.since_s.append(time.monotonic())
        self._stopped.wait(0.2)
