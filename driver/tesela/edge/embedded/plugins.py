"""The kubelet's plugin watcher: finds registrar sockets, registers their drivers, and tells who serves a driver now.

Each instance that promised device health has a stream of it, for as long as it is registered.

Rules: pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin of Kubernetes 1.37, without the growing back-off.
Thread safe: the kubelet's loop calls `sync`, its workers call `client_of`, anybody `forget`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISSOCK
from threading import Lock

from tesela.core.errors import TryAgain
from tesela.edge.embedded.device_health import REOPEN_S, DeviceHealthCache, HealthStream
from tesela.edge.kubelet.client import PluginClient

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """A registrar socket; a new inode at the same path is a new instance."""

    path: Path
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A driver instance that was accepted."""

    driver: str
    client: PluginClient
    stream: HealthStream

    def close(self) -> None:
        """Ends the stream, then the connection."""
        self.stream.close()
        self.client.close()


class Plugins:
    """Drivers that registered through `registry_dir`. `on_health` is called after each change of their health."""

    def __init__(
        self, registry_dir: Path, on_health: Callable[[], None] = lambda: None, reopen_s: float = REOPEN_S
    ) -> None:
        self.health = DeviceHealthCache()
        self._registry_dir = registry_dir
        self._on_health = on_health
        self._reopen_s = reopen_s
        self._lock = Lock()
        self._changing = Lock()
        self._registered: dict[Socket, Registered] = {}

    def sync(self) -> tuple[frozenset[str], frozenset[str]]:
        """Drops vanished sockets, then registers new ones; (drivers that came, drivers whose last instance went)."""
        with self._changing:
            before = self.drivers()
            self._follow(set(self._find_sockets()))
            after = self.drivers()
        return after - before, before - after

    def _follow(self, present: set[Socket]) -> None:
        for socket in [socket for socket in self._registered if socket not in present]:
            with self._lock:
                gone = self._registered.pop(socket)
            gone.close()
        for socket in sorted(present - set(self._registered), key=lambda socket: socket.path):
            self._register(socket)

    def drivers(self) -> frozenset[str]:
        """Names of the drivers that have an instance."""
        with self._lock:
            return frozenset(entry.driver for entry in self._registered.values())

    def client_of(self, driver: str) -> PluginClient:
        """The most recently registered instance. TryAgain in the kubelet's words if there is none."""
        with self._lock:
            found = [entry.client for entry in self._registered.values() if entry.driver == driver]
        if not found:
            raise TryAgain(f"DRA driver {driver} is not registered")
        return found[-1]

    def forget(self) -> None:
        """Drops every registration, as a restart of the kubelet does; the next `sync` registers anew."""
        with self._changing, self._lock:
            gone = list(self._registered.values())
            self._registered.clear()
        for entry in gone:
            entry.close()

    def _register(self, socket: Socket) -> None:
        client = PluginClient(socket.path)
        try:
            info = client.register()
        except TryAgain as error:
            client.close()
            _log.debug("registration: %s", error)
            return
        stream = HealthStream(info.name, client, self.health, self._on_health, self._reopen_s)
        stream.start()
        with self._lock:
            self._registered[socket] = Registered(driver=info.name, client=client, stream=stream)

    def _find_sockets(self) -> Iterator[Socket]:
        if not self._registry_dir.is_dir():
            return
        for path in self._registry_dir.rglob("*"):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if S_ISSOCK(status.st_mode) and not path.name.startswith("."):
                yield Socket(path=path, inode=status.st_ino)
