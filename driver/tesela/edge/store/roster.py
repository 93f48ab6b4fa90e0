"""The durable inventory, `roster.json`. Whoever writes it holds the roster's lock since reading it.

Device names and generations hang on it, and the latter are told by nothing else, so a file that is damaged must not
take them along: `roster.copy.json` holds the same and is written first. A generation that only the copy has was raised
for good.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tesela.core.errors import OtherRelease, StateError, TryAgain
from tesela.core.roster import EMPTY_ROSTER, Roster
from tesela.edge.documents.roster import decode_roster, encode_roster
from tesela.edge.store.files import Fsync, keep_copy, read_file, write_file
from tesela.edge.store.records import RACY_NS


class RosterStore:
    """The roster under `state_dir`. Reading it again costs one look at the file where that has not changed."""

    def __init__(self, state_dir: Path, *, fsync: Fsync = os.fsync) -> None:
        self._fsync = fsync
        self._path = state_dir / "roster.json"
        self._copy = state_dir / "roster.copy.json"
        self._seen: tuple[tuple[int, ...], Roster] | None = None

    @property
    def path(self) -> Path:
        """Where the roster lies."""
        return self._path

    def read_roster(self) -> Roster:
        """What is on disk, `EMPTY_ROSTER` on a node never seen.

        StateError where it is unreadable, OtherRelease where another release wrote it: device names hang on it, so it
        is never replaced by a guess.
        """
        identity = self._look()
        seen = self._seen
        if seen is not None and identity == seen[0]:
            return seen[1]
        data = read_file(self._path)
        if data is None:
            return EMPTY_ROSTER
        try:
            roster = decode_roster(data)
        except OtherRelease as error:
            raise OtherRelease(f"{self._path}: {error}") from error
        except StateError as error:
            raise StateError(f"{self._path}: {error}") from error
        self._seen = (identity, roster) if identity else None
        return roster

    def set_aside(self) -> Path | None:
        """Keeps the file's bytes as `aside/roster.<n>.json` and returns that; None without a file. It stays in place.

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

    def write_roster(self, roster: Roster) -> None:
        """Puts the roster on disk, file and folder synced. TryAgain or StateError leave the old one as it was."""
        data = encode_roster(roster)
        for path in (self._copy, self._path):
            write_file(path, data, mode=0o600, synced=True, fsync=self._fsync)

    def read_copy(self) -> Roster | None:
        """What was written last, for where the file is damaged; None where its copy is of no use either."""
        try:
            data = read_file(self._copy)
            return None if data is None else decode_roster(data)
        except (StateError, TryAgain):
            return None
