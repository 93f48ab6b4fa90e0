"""Whether the libnvidia-ml.so.1 that this process has loaded is still the one on disk.

An upgrade of the GPU driver replaces the file, and a process keeps what it has loaded: from then on it may differ from
the kernel module, and surely differs from what new containers are given. Linux only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

_NAME: Final = "libnvidia-ml.so"
_LINK: Final = "libnvidia-ml.so.1"
_Identity: TypeAlias = tuple[int, int, int, int]


class LibraryFile:
    """The file behind the library. `maps` is this process's list of mapped files.

    `find` tells where a new process would find the library now; None: at the name by which this one has it mapped.
    """

    def __init__(self, maps: Path = Path("/proc/self/maps"), *, find: Callable[[], Path | None] | None = None) -> None:
        self._maps = maps
        self._find = find
        self._path: Path | None = None
        self._loaded: _Identity | None = None
        self._seen: _Identity | None = None

    def note(self) -> None:
        """Remember the file, once the library is loaded; called again it changes nothing."""
        if self._path is None:
            self._path = _find_mapped(self._maps)
            if self._path is not None:
                self._loaded = self._seen = self._look()

    def describe_change(self) -> str:
        """A sentence if another file has stood in its place for two looks in a row, else "".

        A package manager takes a moment, in which the file may be absent or not whole.
        """
        self.note()
        if self._path is None or self._loaded is None:
            return ""
        before, self._seen = self._seen, self._look()
        if self._seen is None or self._seen == self._loaded or self._seen != before:
            return ""
        return f"{self._path} was replaced since this process loaded it"

    def _look(self) -> _Identity | None:
        return _identify(self._path if self._find is None else self._find())


def _find_mapped(maps: Path) -> Path | None:
    """The name by which the library is found again: programs are linked to the name that upgrades keep."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None  # without it an upgrade is noticed by what NVML answers
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not Path(fields[5]).name.startswith(_NAME):
            continue
        mapped = Path(fields[5].removesuffix(" (deleted)"))
        link = mapped.with_name(_LINK)
        return link if link.exists() else mapped
    return None


def _identify(path: Path | None) -> _Identity | None:
    """What changes with the file's content; None where there is none."""
    if path is None:
        return None
    try:
        facts = path.stat()
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
