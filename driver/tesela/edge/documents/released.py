"""Who asked for NVML to be closed, as bytes: what `released.json` holds. The nouns are in `core/released.py`."""

from __future__ import annotations

from typing import Final

from tesela.core.released import Released
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("released", Released, version=1, what="the request to release NVML")


def encode_released(released: Released) -> bytes:
    """`{"version": 1, "released": {...}}` in camelCase."""
    return _ENVELOPE.encode(released)


def decode_released(data: bytes) -> Released:
    """What `data` holds. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
