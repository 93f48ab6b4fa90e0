"""Processes inside a sandbox: started with a log file each, signalled and ended by their own ids."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from e2e.harness.build import HarnessError
from e2e.harness.sandbox import Sandbox, get_child
from polling import until
from tesela.core.errors import ApiUnavailable


class Process:
    """One program in the sandbox. `pid` is its id on the machine, so `os.kill` and /proc work from outside."""

    def __init__(
        self,
        sandbox: Sandbox,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = sandbox.folder / "process-logs" / f"{name}.log"
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._entering = subprocess.Popen(
                sandbox.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
                cwd="/",
            )
        try:
            self.pid = get_child(self._entering.pid)  # nsenter stays outside and waits for the program
        except HarnessError as error:
            raise HarnessError(f"{name} did not start: {self.tail(5)}") from error

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._entering.poll() is None

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used. Linux encodes the id of its CPU clock so (clock_getcpuclockid(3))."""
        return time.clock_gettime(~self.pid << 3 | 2)

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self._signal(signal.SIGKILL)
        self._entering.wait(timeout=20)

    def stop(self, grace_s: float = 10.0) -> int:
        """SIGTERM, SIGKILL after `grace_s`; the exit status, 137 where it had to be killed."""
        self._signal(signal.SIGTERM)
        try:
            return self._entering.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return 137

    def reap(self) -> None:
        """Collects its exit status after the sandbox has ended it."""
        self._entering.wait(timeout=20)

    def wait(self, timeout_s: float) -> int:
        """Its exit status, once it ends by itself; HarnessError if it does not."""
        try:
            return self._entering.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise HarnessError(f"{self.name} still runs after {timeout_s:.0f} s:\n{self.tail()}") from error

    def read_since(self, offset: int) -> list[str]:
        """The lines of its log from `offset` on, such as the log's size at some moment: what it said since then."""
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace").splitlines()

    def tail(self, lines: int = 30, *, matching: str = "") -> str:
        """The last lines of its log (that match a pattern)."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        found = [line for line in text.splitlines() if re.search(matching, line)]
        return "\n".join(found[-lines:])

    def _signal(self, number: int) -> None:
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                self._entering.wait(timeout=20)


def wait_until(what: str, ready: Callable[[], object], *, timeout_s: float, every_s: float = 0.1) -> None:
    """Polls `ready` until it is true; AssertionError naming `what`, with its last value or error, after `timeout_s`.

    An API server that has just started turns lists away until it has read them from etcd (429), which is no failure.
    """
    last: object = None

    def ask() -> object:
        nonlocal last
        try:
            last = ready()
        except (OSError, LookupError, ValueError, ApiUnavailable) as error:
            last = error
            return False
        return last

    if not until(ask, timeout_s, every_s):
        raise AssertionError(f"not within {timeout_s:.0f} s: {what} (last: {last!r})")
