"""`tesela plugin` as a process of its own, to be killed -9, overlapped by a successor, and met by a full disk."""

from __future__ import annotations

import collections
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from polling import until
from tesela.core.errors import TryAgain
from tesela.edge.kubelet.client import PluginClient

TESELA = "import sys; from tesela.cli.main import main; sys.exit(main())"
START_TIMEOUT_S = 60.0
"""For Python and gRPC to come up on a machine where others work."""
LOG_LINES = 20


def render_environment(release: Path | None) -> dict[str, str]:
    """This process's environment, in which `tesela` is that of the folder `release`, else this checkout's."""
    return {**os.environ, **({} if release is None else {"PYTHONPATH": str(release)})}


class DriverProcess:
    """One driver from its start to its end, with the kubelet's connection to it. TryAgain where it does not come up.

    `release` is the folder of another release's package, where it is not this checkout's.
    """

    def __init__(
        self,
        arguments: list[str],
        registry_dir: Path,
        pod_uid: str,
        tell: Callable[[str], None],
        release: Path | None = None,
    ) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=LOG_LINES)
        self._tell = tell
        # Its log goes into a pipe: a file would be on the disk that is made full.
        self.process = subprocess.Popen(
            [sys.executable, "-c", TESELA, "plugin", f"--pod-uid={pod_uid}", *arguments],
            env=render_environment(release),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._registry_dir, self._pod_uid = registry_dir, pod_uid
        self._logging = threading.Thread(target=self._keep_log, daemon=True)
        self._logging.start()
        self.client = self._connect()

    def kill(self) -> None:
        """SIGKILL, wherever it is."""
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        self._end()
        return self.process.returncode

    def fill_disk(self) -> None:
        """No file takes a byte from it: EFBIG instead of ENOSPC, which can be had without root."""
        self._limit_files(0)

    def empty_disk(self) -> None:
        """Files take bytes again."""
        self._limit_files(resource.RLIM_INFINITY)

    def read_log(self) -> str:
        """Its last lines."""
        return "".join(self._lines)

    def _limit_files(self, size: int) -> None:
        try:
            _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size if hard == -1 else min(size, hard), hard))
        except ProcessLookupError:
            return  # killed meanwhile

    def _end(self) -> None:
        self.client.close()
        try:
            self.process.wait(timeout=START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=START_TIMEOUT_S)
        self._logging.join(START_TIMEOUT_S)

    def _keep_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                self._lines.append(line)
                self._tell(f"{self._pod_uid}: {line.rstrip()}")

    def _connect(self) -> PluginClient:
        found: list[PluginClient] = []

        def registers() -> bool:
            if self.process.poll() is not None:
                return True
            for socket in self._registry_dir.glob(f"*{self._pod_uid}*.sock"):
                client = PluginClient(socket)
                try:
                    client.register()
                except TryAgain:
                    client.close()
                else:
                    found.append(client)
            return bool(found)

        until(registers, START_TIMEOUT_S, every_s=0.05)
        if not found:
            self.process.kill()
            self.process.wait(timeout=START_TIMEOUT_S)
            self._logging.join(START_TIMEOUT_S)
            raise TryAgain(f"the driver did not come up:\n{self.read_log()}")
        return found[0]
