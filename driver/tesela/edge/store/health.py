"""The durable health of a node's GPUs, `health.json`. Whoever writes it holds the health lock since reading it.

What only events told is told once, so a file that is damaged must not take it along: it has a copy. Where both are
damaged, or of another release, health is begun anew: what NVML still reads is found again within seconds. So a damaged
file keeps no GPU from being used, and its bytes are kept for people.
"""

from __future__ import annotations

import os
from pathlib import Path

from tesela.core.errors import OtherRelease, StateError
from tesela.core.health.model import ALL_HEALTHY, NodeHealth
from tesela.edge.documents.health import decode_health, encode_health
from tesela.edge.store.copied_file import CopiedFile
from tesela.edge.store.files import Fsync


class HealthStore(CopiedFile[NodeHealth]):
    """The health under `state_dir`."""

    def __init__(self, state_dir: Path, *, fsync: Fsync = os.fsync) -> None:
        super().__init__(
            state_dir / "health.json", empty=ALL_HEALTHY, encode=encode_health, decode=_decode, fsync=fsync
        )

    def read_health(self) -> NodeHealth:
        """What is on disk; `ALL_HEALTHY` without a file.

        StateError where it is unreadable, OtherRelease where another release wrote it: set it aside, and go on from
        its copy.
        """
        return self.read()

    def write_health(self, health: NodeHealth) -> None:
        """Puts the health on disk, file and folder synced. TryAgain or StateError leave the old one as it was."""
        self.write(health)


def _decode(data: bytes) -> NodeHealth:
    try:
        return decode_health(data)
    except OtherRelease:
        raise
    except StateError as error:
        raise StateError(f"{error}; the driver keeps it aside and goes on from its copy") from error
