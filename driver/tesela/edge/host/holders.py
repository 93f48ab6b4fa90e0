"""Who on the host has a device open: for the sentence that explains why a GPU is busy, never for a decision.

Only the host's own /proc shows all processes; with a container's, the list is short and the sentence says less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_LIMIT_S: Final = 1.0


class Processes:
    """The processes under `proc_root`. Looking takes at most `limit_s`, then the answer says that it is cut short."""

    def __init__(self, proc_root: Path, *, limit_s: float = _LIMIT_S) -> None:
        self._proc = proc_root
        self._limit_s = limit_s

    def list_holders(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Processes that have one of `paths` open, by PID, each as `name (pid 123)`; this process is left out."""
        until_s = time.monotonic() + self._limit_s
        wanted, own = frozenset(paths), self._find_own_pid()
        holders = []
        for pid in self._list_pids():
            if time.monotonic() > until_s:
                holders.append(f"perhaps others (looking through {self._proc} took over {self._limit_s:g} s)")
                break
            if pid != own and any(path in wanted for path in self._list_open(pid)):
                holders.append(self.get_command(pid))
        return tuple(holders)

    def get_command(self, pid: int) -> str:
        """`name (pid 123)`, or `pid 123` where the process is gone or hidden."""
        try:
            name = (self._proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            name = ""
        return f"{name} (pid {pid})" if name else f"pid {pid}"

    def _list_pids(self) -> list[int]:
        try:
            return sorted(int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal())
        except OSError:
            return []  # without the host's /proc nobody can be named, and the caller says so

    def _list_open(self, pid: int) -> Iterator[str]:
        try:
            links = list((self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return  # it ended meanwhile, or belongs to somebody whose files we may not see
        for link in links:
            try:
                yield str(link.readlink())
            except OSError:
                continue  # closed meanwhile

    def _find_own_pid(self) -> int:
        """This process's PID as `proc_root` counts: the host's /proc shows us under another number than our own."""
        try:
            return int(str((self._proc / "self").readlink()))
        except (OSError, ValueError):
            return os.getpid()
