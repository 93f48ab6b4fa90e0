"""What containers get of the GPU driver as bytes: what `driver-files.json` holds. Nouns: `core/driver_files.py`."""

from __future__ import annotations

from typing import Final

from tesela.core.driver_files import DriverFiles
from tesela.edge.documents.envelope import Envelope

_ENVELOPE: Final = Envelope("files", DriverFiles, version=1, what="what is known of the driver's files")


def encode_driver_files(files: DriverFiles) -> bytes:
    """`{"version": 1, "files": {...}, "checksum": "..."}` in camelCase."""
    return _ENVELOPE.encode(files)


def decode_driver_files(data: bytes) -> DriverFiles:
    """What is in `data`. StateError: another version, not as it was written, or a field too many, missing or wrong."""
    return _ENVELOPE.decode(data)
