"""The durable inventory, `roster.json`. Whoever writes it holds the roster's lock since reading it.

Device names and generations hang on it, and the latter are told by nothing else, so a file that is damaged must not
take them along: it has a copy. A generation that only the copy has was raised for good.
"""

from __future__ import annotations

import os
from pathlib import Path

from tesela.core.roster import EMPTY_ROSTER, Roster
from tesela.edge.documents.roster import decode_roster, encode_roster
from tesela.edge.store.copied_file import CopiedFile
from tesela.edge.store.files import Fsync


class RosterStore(CopiedFile[Roster]):
    """The roster under `state_dir`."""

    def __init__(self, state_dir: Path, *, fsync: Fsync = os.fsync) -> None:
        super().__init__(
            state_dir / "roster.json", empty=EMPTY_ROSTER, encode=encode_roster, decode=decode_roster, fsync=fsync
        )

    def read_roster(self) -> Roster:
        """What is on disk, `EMPTY_ROSTER` on a node never seen.

        StateError where it is unreadable, OtherRelease where another release wrote it: device names hang on it, so it
        is never replaced by a guess.
        """
        return self.read()

    def write_roster(self, roster: Roster) -> None:
        """Puts the roster on disk, file and folder synced. TryAgain or StateError leave the old one as it was."""
        self.write(roster)
