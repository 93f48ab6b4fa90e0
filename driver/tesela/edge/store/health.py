"""The durable health of a node's GPUs, `health.json`. Whoever writes it holds the health lock since reading it.

What only events told is told once, so a file that is damaged must not take it along: `health.copy.json` holds the same,
and is written first. Where both are damaged, or of another release, health is begun anew: what NVML still reads is
found again within seconds. So a damaged file keeps no GPU from being used, and its bytes are kept for people.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tesela.core.errors import OtherRelease, StateError, TryAgain
from tesela.core.health.model import ALL_HEALTHY, NodeHealth
from tesela.edge.documents.health import decode_health, encode_health
from tesela.edge.store.files import Fsync, keep_copy, read_file, write_file
from tesela.edge.store.records import RACY_NS


class HealthStore:
    """The health under `state_dir`. Reading it again costs one look at the file where that has not changed."""

    def __init__(self, state_dir: Path, *, fsync: Fsync = os.fsync) -> None:
        self._fsync = fsync
        self._path = state_dir / "health.json"
        self._copy = state_dir / "health.copy.json"
        self._seen: tuple[tuple[int, ...], NodeHealth] | None = None

    @property
    def path(self) -> Path:
        """Where the health lies."""
        return self._path

    def read_health(self) -> NodeHealth:
        """What is on disk; `ALL_HEALTHY` without a file.

        StateError where it is unreadable, OtherRelease where another release wrote it: see `begin_anew`.
        """
        identity = self._look()
        seen = self._seen
        if seen is not None and identity == seen[0]:
            return seen[1]
        data = read_file(self._path)
        if data is None:
            return ALL_HEALTHY
        try:
            health = decode_health(data)
        except OtherRelease as error:
            raise OtherRelease(f"{self._path}: {error}") from error
        except StateError as error:
            raise StateError(f"{self._path}: {error}; the driver keeps it aside and goes on from its copy") from error
        self._seen = (identity, health) if identity else None
        return health

    def write_health(self, health: NodeHealth) -> None:
        """Puts the health on disk, file and folder synced. TryAgain or StateError leave the old one as it was."""
        data = encode_health(health)
        for path in (self._copy, self._path):
            write_file(path, data, mode=0o600, synced=True, fsync=self._fsync)

    def read_copy(self) -> NodeHealth | None:
        """What was written last, for where the file is damaged; None where its copy is of no use either."""
        try:
            data = read_file(self._copy)
            return None if data is None else decode_health(data)
        except (StateError, TryAgain):
            return None

    def set_aside(self) -> Path | None:
        """Keeps the file's bytes as `aside/health.<n>.json` and returns that; None without a file. It stays in place.

        TryAgain or StateError where that cannot be.
        """
        return keep_copy(self._path, self._path.parent / "aside", fsync=self._fsync)

    def begin_anew(self) -> Path | None:
        """Sets the file aside and puts an empty one in its place: readings fill it. Same errors as both."""
        kept = self.set_aside()
        self.write_health(ALL_HEALTHY)
        return kept

    def _look(self) -> tuple[int, ...]:
        """What changes whenever the file does; empty where it cannot tell (see `RosterStore`)."""
        try:
            facts = self._path.stat()
        except OSError:
            return ()
        settled = facts.st_mtime_ns < time.time_ns() - RACY_NS
        return (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns) if settled else ()
