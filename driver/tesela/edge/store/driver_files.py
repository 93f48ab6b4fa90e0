"""`driver-files.json` under the driver's folder: what containers get of the host's GPU driver, kept over restarts.

It can be made anew at any time, so it is not synced, a damaged one is as good as none, and it has no lock: two drivers
that overlap write the same, and one that was cut off does not match its checksum.
"""

from __future__ import annotations

from pathlib import Path

from tesela.core.driver_files import DriverFiles
from tesela.core.errors import StateError
from tesela.edge.documents.driver_files import decode_driver_files, encode_driver_files
from tesela.edge.store.files import read_file, write_file


class DriverFilesStore:
    """The file under `state_dir`."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "driver-files.json"

    def read(self) -> DriverFiles | None:
        """What was written last; None where nothing readable is there. TryAgain where the disk does not let us."""
        try:
            data = read_file(self._path)
            return None if data is None else decode_driver_files(data)
        except StateError:
            return None

    def write(self, files: DriverFiles) -> None:
        """Puts it in place. TryAgain or StateError leave the old one as it was."""
        write_file(self._path, encode_driver_files(files), mode=0o644, synced=False)
