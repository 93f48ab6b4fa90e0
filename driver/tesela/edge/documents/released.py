"""Who asked for NVML to be closed, as bytes: what `released.json` holds. The nouns are in `core/released.py`.

Version 2 came with the checksum, which a release that knows none would take for damage.
"""

from __future__ import annotations

from typing import Final

from tesela.core.released import Released
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("released", Released, version=2, what="the request to release NVML", also_reads=(1,))


def encode_released(released: Released) -> bytes:
    """`{"version": 2, "released": {...}}` in camelCase."""
    return _ENVELOPE.encode(released)


def decode_released(data: bytes) -> Released:
    """What `data` holds. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
