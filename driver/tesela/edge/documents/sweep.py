"""What a sweep found as bytes: what `sweep.json` holds. The nouns are in `core/sweep.py`.

Version 2 came with the checksum, which a release that knows none would take for damage.
"""

from __future__ import annotations

from typing import Final

from tesela.core.sweep import SweepReport
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("sweep", SweepReport, version=2, what="the report of the last sweep", also_reads=(1,))


def encode_report(report: SweepReport) -> bytes:
    """`{"version": 2, "sweep": {...}}` in camelCase."""
    return _ENVELOPE.encode(report)


def decode_report(data: bytes) -> SweepReport:
    """The report in `data`. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
