"""CDI documents on disk, one file per claim, where container runtimes look for them.

A runtime loads every `.json` and `.yaml` file of the folder, so a document appears by rename from a name that ends
otherwise. Files are not synced: the folder usually does not outlive a boot, and they are rebuilt from the records.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tesela.core.errors import ClaimRefused, StateError, TryAgain
from tesela.edge.documents.cdi import list_device_names
from tesela.edge.store.files import explain, read_file, remove_file, write_file
from tesela.edge.store.records import check_uid

_PREFIX: Final = "k8s.gpu.nvidia.com-claim_"


class CdiFiles:
    """The CDI documents of ours in `cdi_dir`, by claim UID. Whoever writes or removes one holds the claim's lock."""

    def __init__(self, cdi_dir: Path) -> None:
        self._folder = cdi_dir
        self._readable: dict[str, tuple[int, ...]] = {}
        self._theirs: dict[str, tuple[tuple[int, ...], frozenset[str]]] = {}

    def path(self, uid: str) -> Path:
        """Where the document of claim `uid` lies."""
        return self._folder / f"{_PREFIX}{check_uid(uid)}.json"

    def write(self, uid: str, document: dict[str, Any]) -> None:
        """Puts the document in place, readable to all. TryAgain or StateError leave the old one as it was.

        NVIDIA's driver names the same devices in a `.yaml` file: after a change of driver both would be in conflict,
        and a runtime then knows neither, so a file of that name goes.
        """
        path = self.path(uid)
        write_file(path, json.dumps(document).encode() + b"\n", mode=0o644, synced=False)
        remove_file(path.with_suffix(".yaml"), synced=False)

    def read(self, uid: str) -> dict[str, Any] | None:
        """The document, None where there is none. StateError where it is no JSON object."""
        path = self.path(uid)
        data = read_file(path)
        if data is None:
            return None
        try:
            document = json.loads(data)
        except ValueError as error:
            raise StateError(f"{path} is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise StateError(f"{path} is no CDI document: it holds no object")
        return document

    def remove(self, uid: str) -> bool:
        """Removes the document, and the one that NVIDIA's driver wrote for the claim; False where there was none."""
        path = self.path(uid)
        theirs = remove_file(path.with_suffix(".yaml"), synced=False)
        return remove_file(path, synced=False) or theirs

    def list_their_names(self, uid: str) -> frozenset[str]:
        """The devices in the document that NVIDIA's driver wrote for the claim; none without one that can be loaded.

        A file is read again only where inode, size or time changed.
        """
        path = self.path(uid).with_suffix(".yaml")
        identity = _identify(path)
        if identity is None:
            self._theirs.pop(uid, None)
            return frozenset()
        known = self._theirs.get(uid)
        if known is None or known[0] != identity:
            known = self._theirs[uid] = (identity, list_device_names(read_file(path) or b""))
        return known[1]

    def list_ours(self) -> tuple[str, ...]:
        """The claim UIDs that have a document of ours, ascending; readable or not."""
        try:
            names = [entry.name for entry in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise explain(error, f"cannot list {self._folder}") from error
        found = [
            name.removeprefix(_PREFIX).removesuffix(".json")
            for name in names
            if name.startswith(_PREFIX) and name.endswith(".json")
        ]
        return tuple(sorted(uid for uid in found if _is_uid(uid)))

    def list_readable(self) -> tuple[str, ...]:
        """Those of `list_ours` that a runtime can load. A file is read again only where inode, size or time changed."""
        seen = {uid: identity for uid in self.list_ours() if (identity := _identify(self.path(uid))) is not None}
        self._readable = {
            uid: identity for uid, identity in seen.items() if self._readable.get(uid) == identity or self._loads(uid)
        }
        return tuple(self._readable)

    def _loads(self, uid: str) -> bool:
        try:
            return self.read(uid) is not None
        except (StateError, TryAgain):
            return False


def _identify(path: Path) -> tuple[int, ...] | None:
    try:
        facts = path.stat()
    except OSError:
        return None  # gone, perhaps meanwhile
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _is_uid(text: str) -> bool:
    try:
        check_uid(text)
    except ClaimRefused:
        return False
    return True
