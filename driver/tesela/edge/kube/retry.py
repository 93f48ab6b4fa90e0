"""Retries of API calls, the only user of tenacity.

Only what may succeed later is retried (`ApiUnavailable`); a conflict needs a fresh read, which is the caller's.
A create whose answer was lost may have happened: its retry then ends in `ApiConflict` (AlreadyExists).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_any,
    stop_before_delay,
    stop_when_event_set,
)

from tesela.core.errors import ApiUnavailable

T = TypeVar("T")
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0


def with_retries(call: Callable[[], T], stop: Event, deadline_s: float) -> T:
    """The result of `call`, tried again while the API server is unavailable and a wait still ends within `deadline_s`.

    `deadline_s` 0 means one try. Waits grow from 0.1 s to 5 s with jitter and are never shorter than the server's
    Retry-After; `stop` ends a wait at once. Raises what the last try raised.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(ApiUnavailable),
        stop=stop_any(stop_before_delay(deadline_s), stop_when_event_set(stop)),
        wait=_wait_s,
        sleep=sleep_using_event(stop),
        reraise=True,
    )
    return retrying(call)


def _wait_s(state: RetryCallState) -> float:
    ceiling = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(state.attempt_number - 1, 10))
    jittered = random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads callers, keeps no secret
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, ApiUnavailable) else None
    return max(jittered, asked or 0.0)
