"""What was made of NVIDIA's checkpoint, as bytes: what `adoption.json` holds. The nouns are in `core/adoption.py`."""

from __future__ import annotations

from typing import Final

from tesela.core.adoption import AdoptionReport
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("adoption", AdoptionReport, version=1, what="the report of what was adopted")


def encode_report(report: AdoptionReport) -> bytes:
    """`{"version": 1, "adoption": {...}}` in camelCase."""
    return _ENVELOPE.encode(report)


def decode_report(data: bytes) -> AdoptionReport:
    """The report in `data`. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
