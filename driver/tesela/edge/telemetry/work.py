"""Whose claim this thread works on: set once where the work begins, read by log lines, phases and spans.

A context variable, so that threads that work for others (NVML's, one per GPU side by side) can take it along; it is
never what a decision hangs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tesela.core.model import ClaimRef


class Verb(StrEnum):
    """What is done to a claim. STATUS is what the API is told of it: in log lines alone, no operation is timed."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"
    RECOVER = "recover"
    STATUS = "status"


OPERATIONS: Final = (Verb.PREPARE, Verb.UNPREPARE, Verb.RECOVER)
"""Those that are timed and whose failures are counted."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is done, and to which claim."""

    verb: Verb
    claim: ClaimRef


WORK: Final[ContextVar[Work | None]] = ContextVar("tesela_work", default=None)
"""The work of this thread; None outside of any claim's."""

CLAIM_UID: Final = "claim_uid"
"""Key of a log line's `extra`: the claim that it is about, where only its UID is known."""


@contextmanager
def working_on(verb: Verb, claim: ClaimRef) -> Iterator[None]:
    """The block is work on `claim`."""
    token = WORK.set(Work(verb, claim))
    try:
        yield
    finally:
        WORK.reset(token)
