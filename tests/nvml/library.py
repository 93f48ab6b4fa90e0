"""The C library under test, the binding on top of it, and simulators for it to speak with.

`TESELA_NVML_LIBRARY` names another build of the library, for instance one with sanitizers.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
from nvml.needs import LIBRARY
from tesela.edge.nvml import codes

ROOT = Path(__file__).resolve().parents[2]
SONAME = "libnvidia-ml.so.1"
MACHINE = "a100-40gb:mig,h100-80gb:fabric"
A100, H100 = 0, 1
NO_INSTANCE = 0xFFFFFFFF
OTHER_VERSIONS = bytes.fromhex("0d000000 00000000 19000000 01000000 3f")
"""The answer to a hello of a simulator that speaks none of the protocol versions offered."""
PROMPT_S = 4.0
"""For an answer that needs no silence to pass first."""
SILENT_S = 14.0
"""5 s without a byte, 5 s without a hello, and what a busy machine adds."""


@contextmanager
def bound() -> Iterator[ctypes.CDLL]:
    """The library is what the binding has loaded; afterwards no nvmlInit of the block is left."""
    before, library = pynvml.nvmlLib, ctypes.CDLL(str(LIBRARY))
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield library
    finally:
        while library.nvmlShutdown() == codes.SUCCESS:
            pass
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()


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


def get_mig_mode(library: ctypes.CDLL, gpu: object) -> int:
    """The code of one call on a GPU."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    return library.nvmlDeviceGetMigMode(gpu, ctypes.byref(current), ctypes.byref(pending))


def get_count(library: ctypes.CDLL) -> int:
    """The code of one call on the machine."""
    return library.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint()))


def number_of(handle: object) -> int | None:
    """What stands in a handle of the binding."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def filled(kind: type[ctypes.Structure], **fields: object) -> ctypes.Structure:
    """A struct of the binding, whose constructors take no fields."""
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


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
