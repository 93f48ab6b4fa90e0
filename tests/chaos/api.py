"""The API server's faults: answers that fail, answers that get lost, and a server that is away for a while.

In front of the cluster for the driver alone: the scheduler and the kubelet of these runs speak to the cluster itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tesela.core.errors import ApiUnavailable


class FaultyApi:
    """Any `Kube` with faults in front; whatever its port has is passed on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._guard = threading.Lock()
        self._failures = 0
        self._lost_answers = 0
        self._back_s = 0.0

    def fail(self, calls: int) -> None:
        """The next `calls` calls are not performed."""
        with self._guard:
            self._failures += calls

    def lose_answers(self, calls: int) -> None:
        """The next `calls` calls are performed, and their caller does not hear of it."""
        with self._guard:
            self._lost_answers += calls

    def go_away(self, seconds: float) -> None:
        """No call is answered for `seconds`."""
        self._back_s = time.monotonic() + seconds

    def heal(self) -> None:
        """Nothing fails any more."""
        with self._guard:
            self._failures = self._lost_answers = 0
        self._back_s = 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return (lambda *args, **kwargs: self._call(lambda: value(*args, **kwargs))) if callable(value) else value

    def _call(self, call: Callable[[], Any]) -> Any:
        if time.monotonic() < self._back_s:
            raise ApiUnavailable(503, "ServiceUnavailable", "the API server is away")
        with self._guard:
            fails, self._failures = self._failures > 0, max(0, self._failures - 1)
            is_lost = not fails and self._lost_answers > 0
            self._lost_answers -= is_lost
        if fails:
            raise ApiUnavailable(500, "InternalError", "an injected fault")
        result = call()
        if is_lost:
            raise ApiUnavailable(504, "Timeout", "an injected fault, after the call")
        return result
