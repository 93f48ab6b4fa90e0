"""Lines that say what is going on during anything slower than two seconds.

pytest captures standard error while fixtures run; `keep_terminal` remembers the real one before that.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_terminal: list[TextIO] = []


def keep_terminal() -> None:
    """Keeps a copy of today's standard error, to be called while nobody captures it."""
    if not _terminal:
        _terminal.append(os.fdopen(os.dup(2), "w", buffering=1))


def drop_terminal() -> None:
    """Closes the copy."""
    while _terminal:
        _terminal.pop().close()


def say(line: str) -> None:
    """Prints one line where a person sees it."""
    print(f"[e2e] {line}", file=_terminal[0] if _terminal else sys.stderr, flush=True)


@contextmanager
def step(what: str, detail: Callable[[], str] = str, *, every_s: float = 15.0, quiet_s: float = 2.0) -> Iterator[None]:
    """Says `what` once it has taken `quiet_s`, again with `detail` every `every_s`, and how long it took at the end."""
    began = time.monotonic()
    over = threading.Event()

    def heartbeat() -> None:
        pause_s = quiet_s
        while not over.wait(pause_s):
            say(f"{what}: {time.monotonic() - began:.0f} s so far {detail()}".rstrip())
            pause_s = every_s

    thread = threading.Thread(target=heartbeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    took_s = time.monotonic() - began
    if took_s >= quiet_s:
        say(f"{what}: done in {took_s:.1f} s")
