"""A claim's record as bytes: what `claims/<uid>.json` holds. The nouns are in `core/record.py`.

Version 2 came with grants that outlive a partition, interrupted whole GPUs, claims adopted from NVIDIA's driver and the
checksum. A release that reads version 1 alone refuses it by its number, instead of taking it for a damaged file.
"""

from __future__ import annotations

from typing import Final

from tesela.core.record import ClaimRecord
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("record", ClaimRecord, version=2, what="the claim's record", also_reads=(1,))


def encode_record(record: ClaimRecord) -> bytes:
    """`{"version": 2, "record": {...}}` in camelCase."""
    return _ENVELOPE.encode(record)


def decode_record(data: bytes) -> ClaimRecord:
    """The record in `data`. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
