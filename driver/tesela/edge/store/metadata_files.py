"""Metadata files of KEP-5304 on the host: `dra-device-metadata/<claim UID>/<base request>/metadata.json`.

By UID and not by name: a claim that was deleted and made again has its files while the old one's are removed, and two
names of legal length together exceed a file name's. They are rebuilt from the records, so they are not synced.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tesela.core.errors import StateError
from tesela.edge.store.files import explain, read_file, write_file
from tesela.edge.store.records import check_uid

_REQUEST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class MetadataFiles:
    """The metadata files under `state_dir`. Whoever writes or removes them holds the claim's lock."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "dra-device-metadata"

    def path(self, uid: str, request: str) -> Path:
        """Where the file of base request `request` lies: on the host too, as the state folder is mounted as it is."""
        if _REQUEST.fullmatch(request) is None:
            raise StateError(f"request {request!r} of claim {uid} is no DNS label, so it has no metadata file")
        return self._folder / check_uid(uid) / request / "metadata.json"

    def write(self, uid: str, request: str, data: bytes) -> None:
        """Puts the file in place, readable to all; nothing happens where it holds `data` already.

        A file that exists is overwritten and not replaced: containers have that very file mounted.
        """
        path = self.path(uid, request)
        present = read_file(path)
        if present is None:
            write_file(path, data, mode=0o644, synced=False)
        elif present != data:
            try:
                path.write_bytes(data)
            except OSError as error:
                raise explain(error, f"cannot write {path}") from error

    def remove(self, uid: str) -> None:
        """Removes all files of the claim; nothing happens where there are none."""
        folder = self._folder / check_uid(uid)
        try:
            shutil.rmtree(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise explain(error, f"cannot remove {folder}") from error

    def list_claims(self) -> tuple[str, ...]:
        """The claim UIDs that have a folder, ascending."""
        try:
            return tuple(sorted(entry.name for entry in self._folder.iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise explain(error, f"cannot list {self._folder}") from error
