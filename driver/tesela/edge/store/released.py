"""`released.json`, by which `tesela release-gpu` and the driver talk, and the mark of a process that has NVML open.

Whoever writes the file holds its lock since reading it. The mark is a shared flock: it ends with its process however
that dies, so that nobody has to believe a file about who holds the kernel module.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from tesela.core.errors import TryAgain
from tesela.core.released import NOT_RELEASED, Released
from tesela.edge.documents.released import decode_released, encode_released
from tesela.edge.store.files import Fsync, explain, keep_copy, make_folder, read_file, remove_file, write_file
from tesela.edge.store.flock import try_flock

_MARK_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.01


class ReleasedStore:
    """The file under `state_dir`. It exists only while somebody asks for NVML to be closed, or until that has ended."""

    def __init__(self, state_dir: Path, *, fsync: Fsync = os.fsync) -> None:
        self._fsync = fsync
        self._path = state_dir / "released.json"

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def read(self) -> Released:
        """What it says; NOT_RELEASED without a file. StateError where it is unreadable, OtherRelease by version."""
        data = read_file(self._path)
        return NOT_RELEASED if data is None else decode_released(data)

    def write(self, released: Released) -> None:
        """Puts it on disk, file and folder synced; removes the file where nobody asks and nothing is closed."""
        if released == NOT_RELEASED:
            remove_file(self._path, synced=True, fsync=self._fsync)
        else:
            write_file(self._path, encode_released(released), mode=0o600, synced=True, fsync=self._fsync)

    def write_or_remove(self, released: Released) -> None:
        """As `write`; a full disk takes no file, and lets it go where nobody asks any more."""
        try:
            self.write(released)
        except TryAgain:
            if released.is_wanted:
                raise
            self.write(NOT_RELEASED)

    def set_aside(self) -> Path | None:
        """Keeps a damaged file's bytes as `aside/released.<n>.json` and returns that. It stays until it is written."""
        return keep_copy(self._path, self._path.parent / "aside", fsync=self._fsync)


class OpenMark:
    """Whether any process of the driver on this node has NVML open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "nvml-open.lock"
        self._descriptor: int | None = None

    def hold(self) -> None:
        """Say that this process has NVML open, until `drop` or its end. TryAgain or StateError: it cannot be said."""
        if self._descriptor is not None:
            return
        descriptor = self._open()
        end_s = time.monotonic() + _MARK_TIMEOUT_S
        while not try_flock(descriptor, fcntl.LOCK_SH):
            # Somebody asks whether anybody holds it, which takes no time.
            if time.monotonic() > end_s:
                os.close(descriptor)
                raise TryAgain(f"{self._path} is locked by a process that is none of tesela's, or is stopped")
            time.sleep(_PAUSE_S)
        self._descriptor = descriptor

    def drop(self) -> None:
        """This process has NVML open no longer."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def is_held(self) -> bool:
        """Whether some process has NVML open, this one included."""
        descriptor = self._open()
        try:
            return not try_flock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            make_folder(self._path.parent, synced=False)
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise explain(error, f"cannot open {self._path}") from error
