"""Where the GPU driver's own files lie below its root: programs, libraries, and links as the host follows them.

The driver's root is `/` on most hosts, and a folder where it is installed from a container or on a system whose own
tree is read-only. This process sees it somewhere else again, so a link that starts with `/` leads on from there. The
folders are those of the distributions and of the systems that ship the driver; nothing is run or loaded here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

PROGRAM_FOLDERS: Final = ("usr/bin", "usr/local/bin", "bin", "opt/bin", "usr/local/nvidia/bin", "opt/nvidia/bin")
LIBRARY_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/local/nvidia/lib64",
    "usr/local/glibc/usr/lib",
    "usr/lib",
    "lib",
)
NVML_LIBRARY: Final = "libnvidia-ml.so.1"
_MOST_LINKS: Final = 40
"""As many as Linux follows in one path (path_resolution(7))."""


def find_library(root: Path, name: str) -> Path | None:
    """The file behind `name` in the first of `LIBRARY_FOLDERS` that has it, as this process sees it; None: nowhere."""
    return _find(root, LIBRARY_FOLDERS, name)


def find_program(root: Path, name: str) -> Path | None:
    """The same for a program, in `PROGRAM_FOLDERS`."""
    return _find(root, PROGRAM_FOLDERS, name)


def resolve_below(root: Path, path: PurePosixPath) -> Path:
    """Where this process finds what `path` leads to for a process whose root is `root` (here, as we see it).

    What is missing stays as it is written. `..` does not lead out of `root`. OSError: the links go round in a circle.
    """
    found, rest, links = root, list(reversed(path.parts)), 0
    while rest:
        part = rest.pop()
        if part == "/":
            found = root
        elif part == "..":
            found = found if found == root else found.parent
        elif (target := _read_link(found / part)) is None:
            found /= part
        else:
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root / path.relative_to(path.anchor)))
            rest.extend(reversed(PurePosixPath(target).parts))
    return found


def _find(root: Path, folders: Iterable[str], name: str) -> Path | None:
    for folder in folders:
        try:
            path = resolve_below(root, PurePosixPath(folder, name))
            if path.is_file():
                return path
        except OSError:
            continue  # a folder that cannot be looked into has nothing to give
    return None


def _read_link(path: Path) -> str | None:
    """Where the link leads; None: it is none, or is missing."""
    try:
        return os.readlink(path)  # noqa: PTH115 - as it is written
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
            return None
        raise
