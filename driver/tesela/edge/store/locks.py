"""Locks that hold between threads and between driver processes: two of them may overlap during a rolling update.

Each lock is a lock of this process, by path, and a flock on a file. A flock belongs to an open file, so it ends with
its process however that dies. A lock's file may be unlinked by its holder; who waited for the old file notices by the
inode and starts over. Order of taking: claim, then GPUs in ascending UUID order, then the roster, then health;
publisher alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tesela.core.errors import StateError, TryAgain
from tesela.edge.store.call_marks import CallMarks
from tesela.edge.store.files import explain, make_folder
from tesela.edge.store.flock import is_at_path, try_flock
from tesela.edge.store.records import check_uid
from tesela.edge.telemetry.port import SILENT, Telemetry

_GPU_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
_SIGNATURE_BYTES: Final = 96
"""Every signature covers the one before; a name of a node has at most 63 bytes."""


class _InProcess:
    """The lock of one path within this process, and how many objects use it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


_in_process: dict[str, _InProcess] = {}
_in_process_guard = threading.Lock()


class FileLock:
    """One lock, taken and released by one thread at a time; not reentrant. Made by `FileLocks`.

    Two objects are one lock where their paths are equal, so `path` holds no symbolic link. `kind` is what `telemetry`
    hears its waits under.
    """

    def __init__(self, path: Path, kind: str = "", telemetry: Telemetry = SILENT) -> None:
        self._path = path
        self._kind = kind
        self._telemetry = telemetry
        self._key = str(path)
        self._entry: _InProcess | None = None
        self._descriptor: int | None = None

    @property
    def path(self) -> Path:
        """The lock's file."""
        return self._path

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self, timeout_s: float) -> bool:
        """Takes the lock within `timeout_s` (0: one try); False where somebody else kept it.

        TryAgain or StateError where the file cannot be made: a full disk, a read-only folder.
        """
        if self.held:
            raise StateError(f"{self._path} is taken already by this very object")
        began_s = time.monotonic()
        deadline_s = began_s + timeout_s
        entry = _enter(self._key)
        taken = False
        try:
            if not entry.lock.acquire(timeout=max(timeout_s, 0)):
                return False
            try:
                self._descriptor = self._flock(deadline_s)
                taken = self._descriptor is not None
            finally:
                if not taken:
                    entry.lock.release()
        finally:
            if not taken:
                _leave(self._key, entry)
            self._telemetry.observe_lock_wait(self._kind, time.monotonic() - began_s)
        if taken:
            self._entry = entry
        return taken

    def release(self) -> None:
        """Gives the lock back; nothing happens where it is not held."""
        descriptor, entry = self._descriptor, self._entry
        self._descriptor = self._entry = None
        if descriptor is None or entry is None:
            return
        os.close(descriptor)
        entry.lock.release()
        _leave(self._key, entry)

    def discard(self) -> None:
        """Removes the file of a lock that is held: what it guards is gone. The lock stays held until released."""
        if not self.held:
            raise StateError(f"{self._path} may be removed only by whoever holds it")
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise explain(error, f"cannot remove {self._path}") from error

    def get_holder(self) -> str:
        """Who holds it, as written by the holder: `process 12`, with its pod where known. For sentences only."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            text = ""  # gone or unreadable: the sentence does without
        return text or "another process"

    def is_held_elsewhere(self) -> bool:
        """Whether another process holds it now; nobody is kept from it by the question. False where it has no file.

        Several may ask at once. A holder is told from this process by what it signs with. TryAgain or StateError where
        the file cannot be asked.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain(error, f"cannot ask for {self._path}") from error
        try:
            return not try_flock(descriptor, fcntl.LOCK_SH) and self.get_holder() != _render_signature()
        except OSError as error:
            raise explain(error, f"cannot ask for {self._path}") from error
        finally:
            os.close(descriptor)

    def _flock(self, deadline_s: float) -> int | None:
        """An open descriptor of the file now at the path, with the flock taken; None at the deadline."""
        pause_s = _FIRST_PAUSE_S
        while True:
            descriptor = self._try_flock()
            if descriptor is not None:
                return descriptor
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _try_flock(self) -> int | None:
        try:
            make_folder(self._path.parent, synced=False)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise explain(error, f"cannot lock {self._path}") from error
        kept = False
        try:
            kept = try_flock(descriptor, fcntl.LOCK_EX) and is_at_path(self._path, descriptor)
            if kept:
                _sign(descriptor)
        except OSError as error:
            kept = False
            if error.errno != errno.EINTR:
                raise explain(error, f"cannot lock {self._path}") from error
        finally:
            if not kept:
                os.close(descriptor)
        return descriptor if kept else None


class FileLocks:
    """The locks under `state_dir`/locks. Each call makes a new object over the same lock."""

    def __init__(self, state_dir: Path, telemetry: Telemetry = SILENT) -> None:
        self._folder = Path(os.path.realpath(state_dir)) / "locks"
        self._telemetry = telemetry

    @property
    def folder(self) -> Path:
        """Where the files of all locks lie."""
        return self._folder

    def claim_lock(self, uid: str) -> FileLock:
        """Guards the record, the CDI file and the metadata files of one claim. ClaimRefused: not a UID."""
        return self._make(f"claim-{check_uid(uid)}", "claim")

    def gpu_lock(self, uuid: str) -> FileLock:
        """Guards the mode and the instances of one GPU."""
        if _GPU_UUID.fullmatch(uuid) is None:
            raise StateError(f"{uuid!r} is not the UUID of a GPU, so it cannot be locked")
        return self._make(f"gpu-{uuid}", "gpu")

    @property
    def call_marks(self) -> CallMarks:
        """Which GPU a call of NVML is changing now. Not a lock: nobody waits for one."""
        return CallMarks(self._folder)

    def publisher_lock(self) -> FileLock:
        """Its holder alone writes ResourceSlices."""
        return self._make("publisher", "publisher")

    def roster_lock(self) -> FileLock:
        """Guards the roster, read to write."""
        return self._make("roster", "roster")

    def health_lock(self) -> FileLock:
        """Guards the health of the GPUs, read to write."""
        return self._make("health", "health")

    def released_lock(self) -> FileLock:
        """Guards `released.json`, read to write."""
        return self._make("released", "released")

    def _make(self, name: str, kind: str) -> FileLock:
        return FileLock(self._folder / f"{name}.lock", kind, self._telemetry)


@contextlib.contextmanager
def hold(lock: FileLock, timeout_s: float, what: str) -> Iterator[FileLock]:
    """Holds `lock` for a block. TryAgain after `timeout_s`, naming `what` (as in `GPU GPU-1f`) and its holder."""
    if not lock.acquire(timeout_s):
        raise TryAgain(
            f"{what} is in use by {lock.get_holder()} and did not come free within {timeout_s:g} s: "
            "the kubelet tries again by itself"
        )
    try:
        yield lock
    finally:
        lock.release()


def _enter(key: str) -> _InProcess:
    with _in_process_guard:
        entry = _in_process.setdefault(key, _InProcess())
        entry.users += 1
        return entry


def _leave(key: str, entry: _InProcess) -> None:
    with _in_process_guard:
        entry.users -= 1
        if entry.users == 0:
            del _in_process[key]


def _render_signature() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def _sign(descriptor: int) -> None:
    """Writes who holds the lock into its file, for other processes' sentences; nothing where it stands there already.

    A full disk must not keep a lock from being taken: giving partitions back is what an operator needs most then.
    """
    text = _render_signature().encode().ljust(_SIGNATURE_BYTES) + b"\n"
    with contextlib.suppress(OSError):
        if os.pread(descriptor, len(text), 0) != text:
            os.pwrite(descriptor, text, 0)
