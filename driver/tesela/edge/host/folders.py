"""Whether the host's folders are there and can be written: a mount that is missing or wrong is said at the start."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def make_writable(folder: Path) -> str:
    """Makes `folder` where it is missing; why nothing can be written into it, or "".

    A full disk is no reason: that passes, and what is there can be read and removed meanwhile.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except FileExistsError:
        return "it is no folder"
    except OSError as error:
        return "" if error.errno in _FULL else f"it cannot be made: {error.strerror}"
    if os.access(folder, os.W_OK | os.X_OK):
        return ""
    try:
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    return "it is mounted read-only" if read_only else f"user {os.geteuid()} may not write there"
