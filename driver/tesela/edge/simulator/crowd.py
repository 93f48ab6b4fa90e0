"""Who is connected to the simulator, and how many may be at once.

Nobody is turned away: where there is no room, the connection that has been idle the longest makes some, and until then
the new one waits. What a connection says is not known here.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

MAX_CONNECTIONS: Final = 1024
"""Each has a thread."""
GRACE_S: Final = 1.0
"""So long a connection is not idle yet, though nothing has been asked on it: its client is about to."""
TURN_S: Final = 0.5
"""So long a call waits where as many as may be are in progress; then they are held up, and it is refused."""
_KEPT_DESCRIPTORS: Final = 128
"""Of those that the process may have: for files, and for the host tree."""
_LOOK_AGAIN_S: Final = 0.1


class Client:
    """One connection. `idle_from`: since when it may be closed to make room; None while a request is answered."""

    __slots__ = ("connection", "idle_from", "is_leaving")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.idle_from: float | None = time.monotonic() + GRACE_S
        self.is_leaving = False


class Crowd:
    """The connections of one server; safe to use from many threads. Its length is how many are open.

    A quarter of the room, at most 64 connections, is never in NVML calls, however many hang: operators get in.
    """

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = most if soft == resource.RLIM_INFINITY else min(most, soft - _KEPT_DESCRIPTORS)
        self.most: Final = max(room, 4)
        self.most_calls: Final = self.most - min(64, self.most // 4)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        """Told when a connection is closed, and, while nobody who is idle is left to make room, of who becomes idle."""
        self._turn = threading.Condition(self._lock)
        self._clients: set[Client] = set()
        self._calls = 0
        self._wants_idle = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def clients(self) -> tuple[Client, ...]:
        """Who is connected now, in no order."""
        with self._lock:
            return tuple(self._clients)

    def admit(self, connection: socket.socket) -> Client | None:
        """Waits until there is room for it. None: the server ends."""
        client = Client(connection)
        with self._lock:
            while len(self._clients) >= self.most and not self._closed:
                self._wants_idle = self._count_staying() >= self.most and not self._send_longest_idle_away()
                self._room.wait(_LOOK_AGAIN_S)
            self._wants_idle = False
            if self._closed:
                return None
            client.idle_from = time.monotonic() + GRACE_S
            self._clients.add(client)
        return client

    def leave(self, client: Client) -> None:
        """Its connection is closed."""
        with self._lock:
            self._clients.discard(client)
            self._room.notify()

    @contextlib.contextmanager
    def call(self, client: Client, *, is_limited: bool) -> Iterator[bool]:
        """While a request of the client is answered; False where it must be refused, as `is_limited` ones may be."""
        with self._lock:
            client.idle_from = None
            has_room = not is_limited or self._turn.wait_for(self._is_a_turn_free, TURN_S)
            self._calls += is_limited and has_room
        try:
            yield has_room
        finally:
            with self._lock:
                client.idle_from = time.monotonic()
                self._calls -= is_limited and has_room
                self._turn.notify()
                if self._wants_idle:
                    self._room.notify()

    def close(self) -> None:
        """Ends every connection, and admits no further one."""
        with self._lock:
            self._closed = True
            clients = list(self._clients)
            self._room.notify_all()
            self._turn.notify_all()
        for client in clients:
            with contextlib.suppress(OSError):
                client.connection.shutdown(socket.SHUT_RDWR)

    def _is_a_turn_free(self) -> bool:
        return self._calls < self.most_calls or self._closed

    def _count_staying(self) -> int:
        # Who was sent away but has a request answered first may stay for long: that call may hang.
        return sum(not client.is_leaving or client.idle_from is None for client in self._clients)

    def _send_longest_idle_away(self) -> bool:
        """Whether anybody could be sent away."""
        now = time.monotonic()
        idle = [
            (idle_from, id(client), client)
            for client in self._clients
            if not client.is_leaving and (idle_from := client.idle_from) is not None and idle_from <= now
        ]
        if not idle:
            return False
        _, _, client = min(idle)
        client.is_leaving = True
        # Its next request cannot be sent, so that the client knows that nobody has seen it; one that has arrived by now
        # is answered before the connection ends.
        with contextlib.suppress(OSError):
            client.connection.shutdown(socket.SHUT_RD)
        return True
