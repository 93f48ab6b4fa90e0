"""A claim's record as bytes: what `claims/<uid>.json` holds. The nouns are in `core/record.py`."""

from __future__ import annotations

from typing import Final

from tesela.core.record import ClaimRecord
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("record", ClaimRecord, version=1, what="the claim's record")


def encode_record(record: ClaimRecord) -> bytes:
    """`{"version": 1, "record": {...}}` in camelCase."""
    return _ENVELOPE.encode(record)


def decode_record(data: bytes) -> ClaimRecord:
    """The record in `data`. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
