"""What a sweep found as bytes: what `sweep.json` holds. The nouns are in `core/sweep.py`."""

from __future__ import annotations

from typing import Final

from tesela.core.sweep import SweepReport
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("sweep", SweepReport, version=1, what="the report of the last sweep")


def encode_report(report: SweepReport) -> bytes:
    """`{"version": 1, "sweep": {...}}` in camelCase."""
    return _ENVELOPE.encode(report)


def decode_report(data: bytes) -> SweepReport:
    """The report in `data`. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
