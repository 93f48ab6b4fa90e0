"""flock(2) on files that lie at a path: the two questions that locks and marks share. Nothing here waits."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_flock(descriptor: int, kind: int) -> bool:
    """Whether the flock was had, `kind` being LOCK_SH or LOCK_EX; False where another one stands against it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at_path(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one at `path`: not where that was removed, and perhaps made anew, since."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))
