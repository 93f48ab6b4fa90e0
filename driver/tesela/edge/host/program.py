"""Runs one program of the host to its end, within a time and a size, and leaves nothing of it behind.

What it says is somebody else's: a program that prints without end must not take this process's memory, nor may one that
hangs, or what a script has started, outlive the call. What the words mean is for who asks.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

LARGEST_BYTES: Final = 4 << 20
"""Of what it prints. A description of a GPU driver has some dozen kilobytes."""
_KILLED_WAIT_S: Final = 1.0
_CHUNK_BYTES: Final = 1 << 16


class TooMuchOutput(Exception):
    """It printed more than anybody reads, and was ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: its code, and what it wrote to its output and to its errors."""

    code: int
    output: str
    complaint: str


def run_program(command: Sequence[str], environment: Mapping[str, str], *, timeout_s: float) -> Ended:
    """Without a shell and without input. OSError: it cannot be run.

    TimeoutError, which is an OSError too: it did not end in time; TooMuchOutput: it prints and prints. Either is killed
    with all that it started.
    """
    until_s = time.monotonic() + timeout_s
    process = subprocess.Popen(  # noqa: S603 -- no shell; who asks gives paths and words of ours
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd="/",
        start_new_session=True,  # a script's programs are killed with it
    )
    try:
        output, complaint = _read(process, until_s)
        code = process.wait(max(until_s - time.monotonic(), 0))
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    finally:
        if process.returncode is None:  # it did not end, or nobody has waited for its end
            _kill(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return Ended(code, output.decode(errors="replace"), complaint.decode(errors="replace"))


def _read(process: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes]:
    """All of both, until whoever has them open has closed them."""
    streams: tuple[IO[bytes] | None, ...] = (process.stdout, process.stderr)
    written = (bytearray(), bytearray())
    with selectors.DefaultSelector() as waiting:
        for stream, text in zip(streams, written, strict=True):
            if stream is not None:
                waiting.register(stream, selectors.EVENT_READ, text)
        while waiting.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            for key, _ in waiting.select(left_s):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                key.data.extend(chunk)
                if len(key.data) > LARGEST_BYTES:
                    raise TooMuchOutput
                if not chunk:
                    waiting.unregister(key.fileobj)
    return bytes(written[0]), bytes(written[1])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Does not wait long: one that hangs in the kernel ends when the kernel lets it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_WAIT_S)
