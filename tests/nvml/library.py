"""The C library under test, the binding on top of it, and simulators for it to speak with.

`TESELA_NVML_LIBRARY` names another build of the library, for instance one with sanitizers.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.connection import Connections
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.server import SimulatorServer
from tesela.edge.simulator.wire import ADMIN, TEXT

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("TESELA_NVML_LIBRARY", ROOT / "nvml-sim/build/libnvidia-ml.so.1"))
SONAME = "libnvidia-ml.so.1"
MACHINE = "a100-40gb:mig,h100-80gb:fabric"
A100, H100 = 0, 1
NO_INSTANCE = 0xFFFFFFFF
_TESELA = "import sys; from tesela.cli.main import main; sys.exit(main())"
OTHER_VERSIONS = bytes.fromhex("0d000000 00000000 19000000 01000000 3f")
"""The answer to a hello of a simulator that speaks none of the protocol versions offered."""
START_TIMEOUT_S = 30.0
"""For a process of Python to come up on a machine where others work."""


def load() -> ctypes.CDLL:
    if not LIBRARY.exists():
        raise FileNotFoundError(f"{LIBRARY} is not there; build it: make nvml-sim")
    return ctypes.CDLL(str(LIBRARY))


@contextmanager
def bound() -> Iterator[ctypes.CDLL]:
    """The library is what the binding has loaded; afterwards no nvmlInit of the block is left."""
    before, library = pynvml.nvmlLib, load()
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield library
    finally:
        while library.nvmlShutdown() == codes.SUCCESS:
            pass
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()


@contextmanager
def served(path: Path, spec: str = MACHINE) -> Iterator[SimulatorServer]:
    """A simulator in this process, of which every hung call ends with the block."""
    server = SimulatorServer(build_machine(spec), path)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class SimulatorProcess:
    """`tesela sim serve`, to be killed and stopped."""

    def __init__(self, path: Path, spec: str = MACHINE) -> None:
        self.path = path
        serve = [sys.executable, "-c", _TESELA, "sim", "serve", "--gpus", spec, "--socket", str(path)]
        self.log = path.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(serve, stdout=log, stderr=subprocess.STDOUT)
        until(lambda: "serving" in self.log.read_text() or self.process.poll() is not None, START_TIMEOUT_S)
        if "serving" not in self.log.read_text():
            self.process.kill()
            raise RuntimeError(f"the simulator did not come up: {self.log.read_text()}")

    def ask(self, **fields: object) -> dict:
        """What the simulator answers to one operation of `tesela sim`."""
        payload = bytearray()
        TEXT.put(payload, json.dumps(fields))
        connections = Connections(self.path, timeout_s=10)
        try:
            response = connections.request(ADMIN, bytes(payload), "admin")
        finally:
            connections.close()
        assert response.code == codes.SUCCESS, response.payload
        return json.loads(response.payload[4:])

    def list_calls(self, phase: str) -> list[dict]:
        return [call for call in self.ask(op="status")["calls"] if call["phase"] == phase]

    def stop(self) -> None:
        """It stands still, as under a debugger, from now on."""
        self.process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.process.pid}/stat")
        assert until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)


@contextmanager
def served_apart(path: Path, spec: str = MACHINE) -> Iterator[SimulatorProcess]:
    simulator = SimulatorProcess(path, spec)
    try:
        yield simulator
    finally:
        simulator.kill()


class Thread:
    """`call` in a thread of its own: what it returned, within a limit."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._result: list[object] = []
        self._thread = threading.Thread(target=lambda: self._result.append(call()), daemon=True)
        self._thread.start()

    def result(self, timeout_s: float) -> object:
        self._thread.join(timeout_s)
        if not self._result:
            raise TimeoutError(f"no result within {timeout_s:g} s")
        return self._result[0]

    def is_waiting(self) -> bool:
        return self._thread.is_alive()


@contextmanager
def client(program: str, socket_path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A client process. It finds the library by its soname alone, as clients do."""
    environment = {**os.environ, "TESELA_SIM_SOCKET": str(socket_path), "LD_LIBRARY_PATH": str(LIBRARY.parent)}
    command, pipe = [sys.executable, "-c", program, *arguments], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run_client(program: str, socket_path: Path, *arguments: str, timeout_s: float = 60) -> str:
    """What a client process printed; it must end well."""
    with client(program, socket_path, *arguments) as process:
        printed, errors = process.communicate(timeout=timeout_s)
    if process.returncode or errors:
        raise AssertionError(f"the client ended with {process.returncode}:\n{printed}\n{errors}")
    return printed.strip()


def code_of(call: Callable[..., object], *arguments: object) -> int:
    """The code of the error that the binding raises."""
    try:
        result = call(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    raise AssertionError(f"no error but {result!r}")


def list_exported() -> set[str]:
    """Names of the functions and data that the library exports."""
    done = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
    return {line.split()[2] for line in done.stdout.splitlines() if line.split()[1] not in {"w", "V"}}


def list_stubs() -> set[str]:
    lines = (ROOT / "nvml-sim/unknown.def").read_text().splitlines()
    return {line[len("UNKNOWN(") : -1] for line in lines if line.startswith("UNKNOWN(")}


def pynvml_source() -> Path:
    return Path(pynvml.__file__)


def preloads() -> dict[str, str]:
    """What a process needs to load a library that was built with sanitizers."""
    return {name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS") if name in os.environ}


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """A server that says `answer` to whatever its first client sends, and ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = Thread(serve)
        yield
        thread.result(10)
