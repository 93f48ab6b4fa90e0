"""A mark for the time of each NVML call that changes a GPU: a shared flock that the calling thread takes.

The watchdog gives the locks of a call that hangs free, and the call may still do its work, whenever it returns. Nobody
can know before what lives on that GPU. The kernel keeps the flock until the call has really ended: a process that was
killed stays inside a call that cannot be interrupted, and its files stay open. Nobody ever waits for a mark.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tesela.core.errors import StateError, TryAgain
from tesela.edge.store.files import explain, make_folder
from tesela.edge.store.flock import is_at_path, try_flock

_GPU_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SIGNATURE_BYTES: Final = 160
_PATIENCE_S: Final = 1.0
_PAUSE_S: Final = 0.002


class CallMarks:
    """The marks in `folder`, one file per GPU, `call-<uuid>.lock`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def hold(self, gpu_uuid: str, function: str) -> Iterator[None]:
        """Say for the length of the block that `function` is being called on the GPU; it takes some microseconds.

        TryAgain or StateError where that cannot be said: then the call must not be made.
        """
        descriptor = self._take(self._path(gpu_uuid))
        try:
            _sign(descriptor, function)
            yield
        finally:
            with suppress(OSError):  # closing it does the same, but for a child that is between its fork and its exec
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def find(self, gpu_uuid: str) -> str | None:
        """The call that is under way on the GPU, in words; None where there is none. Takes no time.

        Only who holds the GPU's lock learns something that lasts: nobody begins a call without that.
        """
        path = self._path(gpu_uuid)
        try:
            descriptor = os.open(path, os.O_RDWR)  # an exclusive flock over NFS needs that
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, f"cannot look at {path}") from error
        try:
            if try_flock(descriptor, fcntl.LOCK_EX):
                return None
            signature = os.pread(descriptor, _SIGNATURE_BYTES, 0).decode("utf-8", "replace").strip()
        except OSError as error:
            raise explain(error, f"cannot look at {path}") from error
        finally:
            os.close(descriptor)
        return signature or "a call of NVML"

    def _path(self, gpu_uuid: str) -> Path:
        if _GPU_UUID.fullmatch(gpu_uuid) is None:
            raise StateError(f"{gpu_uuid!r} is not the UUID of a GPU, so no call on it can be marked")
        return self._folder / f"call-{gpu_uuid}.lock"

    def _take(self, path: Path) -> int:
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            descriptor = _try_take(path)
            if descriptor is not None:
                return descriptor
            # Somebody asks just now, which takes no time, or removed the file.
            if time.monotonic() > end_s:
                raise TryAgain(f"{path} is locked by a process that is none of tesela's, or is stopped")
            time.sleep(_PAUSE_S)


def _try_take(path: Path) -> int | None:
    try:
        make_folder(path.parent, synced=False)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise explain(error, f"cannot mark a call in {path}") from error
    kept = False
    try:
        kept = try_flock(descriptor, fcntl.LOCK_SH) and is_at_path(path, descriptor)
    except OSError as error:
        raise explain(error, f"cannot mark a call in {path}") from error
    finally:
        if not kept:
            os.close(descriptor)
    return descriptor if kept else None


def _sign(descriptor: int, function: str) -> None:
    """Which call, for other processes' sentences. A full disk must not keep a partition from being destroyed."""
    text = f"{function} of process {os.getpid()} on {os.uname().nodename}".encode().ljust(_SIGNATURE_BYTES - 1) + b"\n"
    with suppress(OSError):
        os.pwrite(descriptor, text, 0)
