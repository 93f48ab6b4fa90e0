"""The durable inventory, `roster.json`. Whoever writes it holds the roster's lock since reading it."""

from __future__ import annotations

from pathlib import Path

from tesela.core.errors import StateError
from tesela.core.roster import EMPTY_ROSTER, Roster
from tesela.edge.documents.roster import decode_roster, encode_roster
from tesela.edge.store.files import read_file, write_file


class RosterStore:
    """The roster under `state_dir`."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "roster.json"

    @property
    def path(self) -> Path:
        """Where the roster lies."""
        return self._path

    def read_roster(self) -> Roster:
        """What is on disk, `EMPTY_ROSTER` on a node never seen.

        StateError where it is unreadable: device names hang on it, so it is never replaced by a guess.
        """
        data = read_file(self._path)
        if data is None:
            return EMPTY_ROSTER
        try:
            return decode_roster(data)
        except StateError as error:
            raise StateError(f"{self._path}: {error}") from error

    def write_roster(self, roster: Roster) -> None:
        """Puts the roster on disk, file and folder synced. TryAgain or StateError leave the old one as it was."""
        write_file(self._path, encode_roster(roster), mode=0o600, synced=True)
