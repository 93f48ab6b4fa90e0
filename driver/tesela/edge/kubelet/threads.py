"""Which threads gRPC runs a service's calls on, so that one service's slow calls do not hold up another's.

One server serves every service of both sockets: a second one would cost its own timers, which are most of what an idle
driver spends. gRPC looks for `experimental_thread_pool` at each handler; its own health service relies on that too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class OwnThreads:
    """A servicer whose methods run in `pool` and not on the server's threads."""

    def __init__(self, servicer: object, pool: ThreadPoolExecutor) -> None:
        self._servicer = servicer
        self._pool = pool

    def __getattr__(self, name: str) -> _Handler:
        return _Handler(getattr(self._servicer, name), self._pool)


class _Handler:
    def __init__(self, handle: Callable[..., Any], pool: ThreadPoolExecutor) -> None:
        self._handle = handle
        self.experimental_thread_pool = pool

    def __call__(self, request: Any, context: Any) -> Any:
        return self._handle(request, context)
