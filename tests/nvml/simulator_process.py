"""`tesela sim serve` as a process of its own: to be killed and stopped, and asked as an operator asks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from polling import until
from tesela.edge.simulator.admin import SimulatorAdmin

_TESELA = "import sys; from tesela.cli.main import main; sys.exit(main())"
START_TIMEOUT_S = 30.0
"""For a process of Python to come up on a machine where others work."""


class SimulatorProcess:
    """A simulator of `gpus` at `path`, which serves from the start on; its log lies beside its socket."""

    def __init__(self, path: Path, gpus: str, *, host_root: Path | None = None) -> None:
        self.path = path
        self._log = path.with_suffix(".log")
        command = [sys.executable, "-c", _TESELA, "sim", "serve", "--gpus", gpus, "--socket", str(path)]
        command += [] if host_root is None else ["--host-root", str(host_root)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(lambda: "serving" in self.read_log() or self.process.poll() is not None, START_TIMEOUT_S)
        if "serving" not in self.read_log() or self.process.poll() is not None:
            self.kill()
            raise RuntimeError(f"the simulator did not come up in {START_TIMEOUT_S:g} s: {self.read_log()}")

    def ask(self, **fields: object) -> dict:
        """What the simulator answers to one operation of `tesela sim`."""
        with closing(SimulatorAdmin(self.path, timeout_s=10)) as admin:
            return admin.send(fields)

    def list_calls(self, phase: str) -> list[dict]:
        return [call for call in self.ask(op="status")["calls"] if call["phase"] == phase]

    def read_log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        """It stands still, as under a debugger, from now on."""
        self.process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.process.pid}/stat")
        assert until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait(timeout=10)


@contextmanager
def served_apart(path: Path, gpus: str, *, host_root: Path | None = None) -> Iterator[SimulatorProcess]:
    """It ends with the block."""
    simulator = SimulatorProcess(path, gpus, host_root=host_root)
    try:
        yield simulator
    finally:
        simulator.kill()
