"""The health of a node as bytes: what `health.json` holds. The nouns are in `core/health/model.py`.

Version 2 came with the checksum, which a release that knows none would take for damage.
"""

from __future__ import annotations

from typing import Final

from tesela.core.health.model import NodeHealth
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("health", NodeHealth, version=2, what="the health of this node's GPUs", also_reads=(1,))


def encode_health(health: NodeHealth) -> bytes:
    """`{"version": 2, "health": {...}}` in camelCase."""
    return _ENVELOPE.encode(health)


def decode_health(data: bytes) -> NodeHealth:
    """The health in `data`. StateError: another version, not JSON, or a field too many, missing or of a wrong type."""
    return _ENVELOPE.decode(data)
