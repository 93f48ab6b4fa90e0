"""One record file per claim, `claims/<uid>.json`: the only truth about what is ours. A damaged file harms one claim.

Whoever writes, removes or sets aside a record holds the claim's lock (`locks.py`). Reading one claim to act on it is
done under that lock too; listing needs none, and shows each record as it was before or after a change, never between.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import DirEntry, scandir
from pathlib import Path

from tesela.core.errors import ClaimRefused, OtherRelease, StateError
from tesela.core.record import ClaimRecord, ClaimState
from tesela.core.release import render_unpreparing
from tesela.edge.documents.record import decode_record, encode_record
from tesela.edge.store.files import Fsync, explain, keep_copy, read_file, remove_file, write_file

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MODE = 0o600
_UNPREPARING_MODE = stat.S_ISVTX | _MODE
"""The sticky bit means nothing on a file, so nobody sets it; and a full disk takes a mode, but no attribute (xfs)."""
RACY_NS = 100_000_000
"""A file younger than this may change again without its times showing it: the kernel's file clock ticks in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    """A record file that does not decode. `problem` is a sentence; `uid` is what the file's name says.

    One that is `foreign` is not damaged: another release of tesela wrote it, and its bytes must stay.
    """

    uid: str
    path: Path
    problem: str
    foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All records by claim UID, ascending, and the files that are none."""

    records: tuple[ClaimRecord, ...]
    unreadable: tuple[UnreadableRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class _Seen:
    identity: tuple[int, int, int, int]
    record: ClaimRecord


def check_uid(uid: str) -> str:
    """`uid` itself where it can stand in a file name; ClaimRefused otherwise."""
    if _UID.fullmatch(uid) is None:
        raise ClaimRefused(f"claim UID {uid!r} is not a UID: letters, digits, - and _ only, at most 128")
    return uid


class RecordStore:
    """The records under `state_dir`. Missing folders are made by the first write; reading makes none."""

    def __init__(self, state_dir: Path, *, fsync: Fsync = os.fsync) -> None:
        self._fsync = fsync
        self._claims = state_dir / "claims"
        self._aside = state_dir / "aside"
        self._seen: dict[str, _Seen] = {}
        self._guard = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each record that this process writes; it must not block, a claim's pod waits."""
        self._listeners.append(callback)

    def path(self, uid: str) -> Path:
        """Where the record of claim `uid` lies."""
        return self._claims / f"{check_uid(uid)}.json"

    def read(self, uid: str) -> ClaimRecord | None:
        """The record on disk, None where there is none.

        StateError where it is unreadable, OtherRelease where another release wrote it; both name the file.
        """
        path = self.path(uid)
        data = read_file(path)
        return None if data is None else _with_mark(_decode(uid, path, data), _get_mode(path))

    def list(self) -> Listing:
        """All records. A file is parsed again only where its inode, size or times changed since the last look."""
        records: dict[str, ClaimRecord] = {}
        unreadable: list[UnreadableRecord] = []
        seen: dict[str, _Seen] = {}
        for entry in _scan(self._claims):
            uid = entry.name.removesuffix(".json")
            try:
                looked = self._look(uid, entry)
            except (StateError, ClaimRefused) as error:
                foreign = isinstance(error, OtherRelease)
                unreadable.append(UnreadableRecord(uid=uid, path=Path(entry.path), problem=str(error), foreign=foreign))
                continue
            if looked is None:
                continue
            records[uid] = looked.record
            seen[uid] = looked
        with self._guard:
            self._seen = seen
        return Listing(
            records=tuple(records[uid] for uid in sorted(records)),
            unreadable=tuple(sorted(unreadable, key=lambda item: item.uid)),
        )

    def write(self, record: ClaimRecord, *, synced: bool = True) -> None:
        """Puts the record in place, on disk when `synced`. TryAgain or StateError leave the old record as it was.

        A record that is not synced outlives this process, not the machine: enough for a step between two answers,
        because every partition that it covers goes with the machine too.
        """
        path = self.path(record.claim.uid)
        write_file(path, encode_record(record), mode=_MODE, synced=synced, fsync=self._fsync)
        for listener in self._listeners:
            listener()

    def mark_unpreparing(self, uid: str) -> None:
        """Says that a prepared claim is being given back where that cannot be written: it takes no space on the disk.

        The file gets the mode 1600, which nothing else gives it, and reads as *unpreparing* until it is written anew.
        Not synced, as such a step needs not be. TryAgain or StateError where that cannot be either.
        """
        path = self.path(uid)
        try:
            path.chmod(_UNPREPARING_MODE)
        except OSError as error:
            raise explain(error, f"cannot mark {path}") from error
        for listener in self._listeners:
            listener()

    def remove(self, uid: str) -> bool:
        """Removes the record, synced; False where there was none."""
        return remove_file(self.path(uid), synced=True, fsync=self._fsync)

    def set_aside(self, uid: str) -> Path | None:
        """Keeps the bytes of the claim's file as `aside/<uid>.<n>.json` and returns that; None without a file.

        The file itself stays until a record is written over it: a claim without file counts as unknown, and what it
        holds as nobody's.
        """
        return keep_copy(self.path(uid), self._aside, fsync=self._fsync)

    def _look(self, uid: str, entry: DirEntry[str]) -> _Seen | None:
        """The record of `entry`, from memory where the file is provably the one parsed before; None if it vanished.

        Every write makes a new inode, so equal identity means equal bytes, but for an inode number used twice within
        one tick of the file clock: a file that young is remembered under an identity that matches nothing.
        """
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, f"cannot read {entry.path}") from error
        identity = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        known = self._seen.get(uid)
        if known is not None and known.identity == identity:
            return known
        now_ns = time.time_ns()
        data = read_file(Path(entry.path))
        if data is None:
            return None
        settled = facts.st_mtime_ns < now_ns - RACY_NS
        record = _with_mark(_decode(check_uid(uid), Path(entry.path), data), facts.st_mode)
        return _Seen(identity if settled else (0, 0, 0, 0), record)


def _get_mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return _MODE  # whoever reads without the lock may see it go
    except OSError as error:
        raise explain(error, f"cannot read {path}") from error


def _with_mark(record: ClaimRecord, mode: int) -> ClaimRecord:
    marked = stat.S_IMODE(mode) == _UNPREPARING_MODE and record.state is ClaimState.PREPARED
    return render_unpreparing(record) if marked else record


def _scan(folder: Path) -> tuple[DirEntry[str], ...]:
    try:
        with scandir(folder) as entries:
            return tuple(e for e in entries if e.name.endswith(".json") and not e.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise explain(error, f"cannot list {folder}") from error


def _decode(uid: str, path: Path, data: bytes) -> ClaimRecord:
    try:
        record = decode_record(data)
    except OtherRelease as error:
        raise OtherRelease(f"{path}: {error}") from error
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    if record.claim.uid != uid:
        raise StateError(f"{path}: this record belongs to claim {record.claim}, not to the claim its name says")
    return record
