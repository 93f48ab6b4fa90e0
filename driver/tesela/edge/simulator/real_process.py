"""A process of this machine that stands for one on a simulated GPU: whether it lives, and a wait for its end.

A pidfd where the kernel has one: it cannot be taken for a later process of the same number. Elsewhere the start time in
/proc/PID/stat tells them apart.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Final

from tesela.core.errors import DocumentError

_STATE, _START_TIME = 0, 19
"""Fields of /proc/PID/stat after the command's name, which may hold anything (proc(5))."""
_LOOK_S: Final = 0.2


class RealProcess:
    """The process that had number `pid` when it was found."""

    def __init__(self, pid: int, descriptor: int | None, start_time: str) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._start_time = start_time

    @classmethod
    def find(cls, pid: int, *, use_pidfd: bool = True) -> RealProcess:
        """The living process `pid`. DocumentError: there is none that this process can see."""
        start_time = _read_start_time(pid)
        if start_time is None:
            raise DocumentError("pid", f"no process {pid} lives on the simulator's machine, or it cannot see it")
        descriptor = None
        if use_pidfd and hasattr(os, "pidfd_open"):
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError as error:
                raise DocumentError("pid", f"process {pid} has just ended") from error
            except OSError:
                descriptor = None  # an older kernel, or one that forbids it: look into /proc instead
        return cls(pid, descriptor, start_time)

    def read_name(self) -> str:
        """What the kernel calls it, its program's name in 15 bytes as a rule; "" once it has ended."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
        except OSError:
            return ""

    def wait(self, timeout_s: float) -> bool:
        """Whether the process has ended, waiting for that no longer than `timeout_s`."""
        if self._descriptor is not None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        end_s = time.monotonic() + timeout_s
        while _read_start_time(self.pid) == self._start_time:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, _LOOK_S))
        return True

    def close(self) -> None:
        """Lets go of the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read_start_time(pid: int) -> str | None:
    """When the process began, in the kernel's ticks; None where it does not live (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in {"Z", "X"} else fields[_START_TIME]
