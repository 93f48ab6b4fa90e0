"""`sweep.json` under the driver's folder: what the last sweep found, for people. The driver never reads it.

So it needs no lock and is not synced: two drivers that overlap write one after the other, and each file is whole.
"""

from __future__ import annotations

from pathlib import Path

from tesela.core.errors import StateError
from tesela.core.sweep import SweepReport
from tesela.edge.documents.sweep import decode_report, encode_report
from tesela.edge.store.files import read_file, write_file


class SweepStore:
    """The report under `state_dir`."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "sweep.json"

    @property
    def path(self) -> Path:
        """Its file."""
        return self._path

    def write_report(self, report: SweepReport) -> None:
        """Puts the report in place. TryAgain or StateError leave the old one as it was."""
        write_file(self._path, encode_report(report), mode=0o644, synced=False)

    def read_report(self) -> SweepReport | None:
        """The last report, None before the first sweep. StateError where the file is damaged, naming it."""
        data = read_file(self._path)
        if data is None:
            return None
        try:
            return decode_report(data)
        except StateError as error:
            raise StateError(f"{self._path}: {error}; the next sweep writes it anew") from error
