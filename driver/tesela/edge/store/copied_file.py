"""A state file that must not be lost with its bytes: a copy beside it holds the same, and is written first.

Whoever writes one holds its lock since reading it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tesela.core.errors import OtherRelease, StateError, TryAgain
from tesela.edge.store.files import Fsync, keep_copy, read_file, write_file
from tesela.edge.store.records import RACY_NS

T = TypeVar("T")


class CopiedFile(Generic[T]):
    """`NAME.json` and its copy `NAME.copy.json`. Reading it again costs one look at the file where nothing changed."""

    def __init__(
        self,
        path: Path,
        *,
        empty: T,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        fsync: Fsync = os.fsync,
    ) -> None:
        """`empty` is what a file says that is not there. `decode` raises StateError, or OtherRelease by version."""
        self._path = path
        self._copy = path.with_suffix(".copy.json")
        self._empty = empty
        self._encode = encode
        self._decode = decode
        self._fsync = fsync
        self._seen: tuple[tuple[int, ...], T] | None = None

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def read(self) -> T:
        """What is on disk. StateError where it is unreadable, OtherRelease where another release wrote it."""
        identity = self._look()
        seen = self._seen
        if seen is not None and identity == seen[0]:
            return seen[1]
        data = read_file(self._path)
        if data is None:
            return self._empty
        try:
            value = self._decode(data)
        except OtherRelease as error:
            raise OtherRelease(f"{self._path}: {error}") from error
        except StateError as error:
            raise StateError(f"{self._path}: {error}") from error
        self._seen = (identity, value) if identity else None
        return value

    def read_copy(self) -> T | None:
        """What was written last, for where the file is damaged; None where its copy is of no use either."""
        try:
            data = read_file(self._copy)
            return None if data is None else self._decode(data)
        except (StateError, TryAgain):
            return None

    def is_of_today(self, value: T) -> bool:
        """Whether the file is, byte by byte, what `write` makes of `value`: not one that an older release wrote."""
        return read_file(self._path) == self._encode(value)

    def write(self, value: T) -> None:
        """Puts both on disk, files and folder synced. TryAgain or StateError leave the file as it was."""
        data = self._encode(value)
        for path in (self._copy, self._path):
            write_file(path, data, mode=0o600, synced=True, fsync=self._fsync)

    def set_aside(self) -> Path | None:
        """Keeps the file's bytes as `aside/NAME.<n>.json` and returns that; None without a file. It stays in place.

        TryAgain or StateError where that cannot be.
        """
        return keep_copy(self._path, self._path.parent / "aside", fsync=self._fsync)

    def _look(self) -> tuple[int, ...]:
        """What changes whenever the file does; empty where it cannot tell.

        Every write makes a new inode, whose number may be an old one's within one tick of the file clock.
        """
        try:
            facts = self._path.stat()
        except OSError:
            return ()
        settled = facts.st_mtime_ns < time.time_ns() - RACY_NS
        return (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns) if settled else ()
