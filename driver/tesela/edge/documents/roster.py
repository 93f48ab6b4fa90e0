"""The durable inventory as bytes: what `roster.json` holds. The nouns are in `core/roster.py`.

Version 2 came with the checksum, which a release that knows none would take for damage.
"""

from __future__ import annotations

from typing import Final

from tesela.core.roster import Roster
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("roster", Roster, version=2, what="the roster of GPUs", also_reads=(1,))


def encode_roster(roster: Roster) -> bytes:
    """`{"version": 2, "roster": {...}}` in camelCase."""
    return _ENVELOPE.encode(roster)


def decode_roster(data: bytes) -> Roster:
    """The roster in `data`. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
