"""How a file of ours changes: whole or not at all, and on the disk before anybody relies on it.

A new version is written beside the old one under a name that starts with a dot, then renamed over it, so that a
reader sees the old bytes or the new ones. The temporary name is fixed per file: whoever writes holds that file's lock,
and a temporary left by a crash is overwritten by the next write instead of piling up. `fsync` is the call that puts an
open file or folder on disk: a parameter, so that a test sees what was synced, and when.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tesela.core.errors import StateError, TeselaError, TryAgain

Fsync: TypeAlias = Callable[[int], None]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def write_file(path: Path, data: bytes, *, mode: int, synced: bool, fsync: Fsync = os.fsync) -> None:
    """Puts `data` at `path` by rename, making its folder where missing.

    With `synced`, file and folder are on disk when this returns. TryAgain on a full disk, StateError where the folder
    cannot be written; in both cases the old file stands unchanged and nothing is left beside it.
    """
    temporary = _temporary_of(path)
    try:
        make_folder(path.parent, synced=synced, fsync=fsync)
        try:
            _write_whole(temporary, data, mode=mode, fsync=fsync if synced else None)
            temporary.rename(path)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                temporary.unlink(missing_ok=True)
            raise
        if synced:
            sync_folder(path.parent, fsync)
    except OSError as error:
        raise explain(error, f"cannot write {path}") from error


def remove_file(path: Path, *, synced: bool, fsync: Fsync = os.fsync) -> bool:
    """Removes `path` and a temporary of it; False where there was no file. Same errors as `write_file`."""
    try:
        _temporary_of(path).unlink(missing_ok=True)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if synced:
            sync_folder(path.parent, fsync)
        return True
    except OSError as error:
        raise explain(error, f"cannot remove {path}") from error


def keep_copy(path: Path, folder: Path, *, fsync: Fsync = os.fsync) -> Path | None:
    """Keeps the bytes at `path` as `folder`/<stem>.<n><suffix>, synced; None without a file. Same errors as above."""
    try:
        if not path.exists():
            return None
        make_folder(folder, synced=True, fsync=fsync)
        taken = {entry.name for entry in folder.iterdir()}
        names = (f"{path.stem}.{number}{path.suffix}" for number in range(1, len(taken) + 2))
        target = folder / next(name for name in names if name not in taken)
        target.hardlink_to(path)
        sync_folder(folder, fsync)
    except OSError as error:
        raise explain(error, f"cannot set {path} aside") from error
    return target


def read_file(path: Path) -> bytes | None:
    """The bytes at `path`, None where there is no file. TryAgain or StateError as `write_file`.

    A pipe, which nobody may ever write into, and a device, which may have no end, are refused.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StateError(f"{path} is no regular file; remove it")
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise explain(error, f"cannot read {path}") from error


def make_folder(path: Path, *, synced: bool, fsync: Fsync = os.fsync) -> None:
    """Makes `path` and its parents; the new entries are on disk when `synced`. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent, synced=synced, fsync=fsync)
    path.mkdir(mode=0o755, exist_ok=True)
    if synced:
        sync_folder(path.parent, fsync)


def sync_folder(path: Path, fsync: Fsync = os.fsync) -> None:
    """Puts the folder's entries on disk: a rename or an unlink survives a power cut only after this. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(error: OSError, what: str) -> TeselaError:
    """Our error for `error`, saying what failed and what to do: TryAgain where waiting may help, else StateError."""
    cause = error.strerror or str(error)
    if error.errno in _FULL:
        return TryAgain(f"{what}: {cause}: free space on that file system, the kubelet tries again by itself")
    if error.errno in _EXHAUSTED:
        return TryAgain(f"{what}: {cause}: the node is out of descriptors or memory, the kubelet tries again by itself")
    if error.errno in _FORBIDDEN:
        return StateError(f"{what}: {cause}: the driver must be able to write there; see the mounts of its DaemonSet")
    return StateError(f"{what}: {cause}: look at the node's disk and its kernel log")


def _temporary_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _write_whole(path: Path, data: bytes, *, mode: int, fsync: Fsync | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)  # the umask is not ours to trust
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if fsync is not None:
            fsync(descriptor)
    finally:
        os.close(descriptor)
