"""The one place where a test sleeps: a poll with a deadline, for what offers nothing to wait on."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], timeout_s: float = 10.0, every_s: float = 0.01) -> bool:
    """Whether `condition` was true within `timeout_s`; it is asked once more after the last wait."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)  # noqa: TID251 - the place that the ban leaves
    return True
