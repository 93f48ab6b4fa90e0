"""State that a newer release of tesela wrote is left as it is: a downgrade that guesses loses what it holds.

Asked once, at the start, before anything is read to be acted on. It decides nothing about files that are damaged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tesela.core.errors import OtherRelease, StartError, StateError, TryAgain
from tesela.edge.store.health import HealthStore
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore


def refuse_newer_files(rosters: RosterStore, records: RecordStore) -> None:
    """StartError where the roster, the health or any claim's record is in a version that this release cannot read."""
    found = list(_list_newer(rosters, records))
    if found:
        more = f" (and {len(found) - 1} more files likewise)" if len(found) > 1 else ""
        raise StartError(
            f"{found[0]}{more}; nothing on this node was changed, pods that run keep running; to "
            "stay with this release, see docs/upgrade.md, Rolling back"
        )


def _list_newer(rosters: RosterStore, records: RecordStore) -> Iterator[str]:
    for store in (rosters, HealthStore(rosters.path.parent)):
        with contextlib.suppress(StateError, TryAgain):  # damage is for those who mend it
            try:
                store.read()
            except OtherRelease as error:
                yield str(error)
    yield from (one.problem for one in records.list().unreadable if one.foreign)
