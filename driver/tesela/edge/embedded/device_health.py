"""The kubelet's health of devices: a stream per driver, a cache of what it said, and what of it a pod's status shows.

Rules: pkg/kubelet/cm/dra of Kubernetes 1.37, healthinfo.go and UpdateAllocatedResourcesStatus of manager.go.
A stream that ends takes all health of its driver with it and is opened again after a pause; an entry that was not
repeated in time is dropped. Where the kubelet waits for the next look at a pod, this one writes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from time import monotonic

from tesela.core.claim import base_request
from tesela.core.errors import StateError, TryAgain
from tesela.edge.embedded.claim_cache import CachedClaim
from tesela.edge.kube.port import Json
from tesela.edge.kubelet.client import HealthReport, HealthWatch, PluginClient
from tesela.edge.kubelet.port import DeviceHealth

REOPEN_S = 5.0
JOIN_TIMEOUT_S = 10.0
_WORDS = {True: "Healthy", False: "Unhealthy", None: "Unknown"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    health: DeviceHealth
    holds_s: int
    until_s: float


class DeviceHealthCache:
    """What the drivers said, by driver, pool and device. Thread safe; `version` rises with each change."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._drivers: dict[str, dict[tuple[str, str], _Entry]] = {}
        self._version = 1

    @property
    def version(self) -> int:
        """Equal numbers mean equal health; entries that were not repeated in time are dropped here."""
        with self._lock:
            now_s = self._clock()
            for entries in self._drivers.values():
                for key in [key for key, entry in entries.items() if entry.until_s < now_s]:
                    del entries[key]
                    self._version += 1
            return self._version

    def update(self, driver: str, report: HealthReport) -> bool:
        """Takes a report in; whether anything changed. What it does not name stays until its own time is over."""
        with self._lock:
            entries = self._drivers.setdefault(driver, {})
            before = {key: (entry.health, entry.holds_s) for key, entry in entries.items()}
            now_s = self._clock()
            for health, holds_s in report:
                entries[health.pool, health.device] = _Entry(health=health, holds_s=holds_s, until_s=now_s + holds_s)
            changed = before != {key: (entry.health, entry.holds_s) for key, entry in entries.items()}
            self._version += changed
            return changed

    def clear(self, driver: str) -> None:
        """Forgets all health of a driver."""
        with self._lock:
            self._version += bool(self._drivers.pop(driver, None))

    def get(self, driver: str, pool: str, device: str) -> DeviceHealth:
        """What holds for a device now; unknown, without a message, where nothing does."""
        with self._lock:
            entry = self._drivers.get(driver, {}).get((pool, device))
        if entry is None or entry.until_s < self._clock():
            return DeviceHealth(pool=pool, device=device, healthy=None)
        return entry.health


class HealthStream:
    """Keeps a stream of one registered driver open on a thread of its own, from `start` to `close`."""

    def __init__(
        self,
        driver: str,
        client: PluginClient,
        cache: DeviceHealthCache,
        on_change: Callable[[], None],
        reopen_s: float = REOPEN_S,
    ) -> None:
        self._driver = driver
        self._client = client
        self._cache = cache
        self._on_change = on_change
        self._reopen_s = reopen_s
        self._closing = Event()
        self._lock = Lock()
        self._watch: HealthWatch | None = None
        self._thread = Thread(target=self._run, name=f"health of {driver}", daemon=True)

    def start(self) -> None:
        """Begins, where the driver promised health."""
        if self._client.health_service is not None:
            self._thread.start()

    def close(self) -> None:
        """Ends the stream and waits for its thread, bounded; from any thread but its own."""
        self._closing.set()
        with self._lock:
            if self._watch is not None:
                self._watch.cancel()
        if self._thread.ident is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
            except TryAgain as error:
                _log.debug("health of %s: %s; opened again", self._driver, error)
            except StateError as error:
                _log.warning("health of %s is watched no more: %s", self._driver, error)
                return
            self._closing.wait(self._reopen_s)

    def _follow(self) -> None:
        with self._lock:
            if self._closing.is_set():
                return
            self._watch = watch = self._client.watch_health()
        try:
            for report in watch:
                if self._cache.update(self._driver, report):
                    self._on_change()
        finally:
            self._cache.clear(self._driver)
            self._on_change()


def render_container_statuses(
    pod: Json, statuses: Sequence[Json], claims: Mapping[str, CachedClaim], cache: DeviceHealthCache
) -> list[Json]:
    """`statuses` of the pod's containers with `allocatedResourcesStatus`; `claims` are by the pod's names for them.

    Containers without claims, and init containers, are left as they are.
    """
    containers = {container["name"]: container for container in pod["spec"]["containers"]}
    rendered = []
    for status in statuses:
        used = containers.get(status["name"], {}).get("resources", {}).get("claims", [])
        shown = list(_render_claims(used, claims, cache))
        kept = {key: value for key, value in status.items() if key != "allocatedResourcesStatus"}
        rendered.append({**kept, "allocatedResourcesStatus": shown} if shown else kept)
    return rendered


def _render_claims(used: Sequence[Json], claims: Mapping[str, CachedClaim], cache: DeviceHealthCache) -> Iterator[Json]:
    for claim in used:
        name, request = claim["name"], claim.get("request", "")
        if name not in claims:
            continue
        resources: dict[str, Json] = {}
        for driver, devices in claims[name].answers.items():
            for device in devices:
                names = device.request_names
                if request and names and base_request(request) not in names:
                    continue
                health = cache.get(driver, device.pool_name, device.device_name)
                ids = device.cdi_device_ids or (f"{driver}/{device.pool_name}/{device.device_name}",)
                resources.setdefault(ids[0], _render_resource(ids[0], health))
        if resources:
            full_name = f"claim:{name}/{request}" if request else f"claim:{name}"
            yield {"name": full_name, "resources": list(resources.values())}


def _render_resource(resource_id: str, health: DeviceHealth) -> Json:
    resource = {"resourceID": resource_id, "health": _WORDS[health.healthy]}
    return {**resource, "message": health.message} if health.message else resource
