"""The files of the host's GPU driver that containers need, looked at through where this process sees the driver's root.

Paths that leave this file are the host's own, as a container runtime needs them. Nothing is run here, and nothing is
decided: which files a container gets is the business of `core/driver_files.py`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from tesela.core.driver_files import CUDA, DriverEdits, FileIdentity, FileMount, Library, plan_library_mounts
from tesela.core.errors import StateError
from tesela.edge.host.driver_root import LIBRARY_FOLDERS, PROGRAM_FOLDERS, resolve_below
from tesela.edge.host.elf import MACHINES, read_shared_object

TOOLKIT: Final = "nvidia-ctk"
HOOK: Final = "nvidia-cdi-hook"
TOOLKIT_FOLDERS: Final = (*PROGRAM_FOLDERS, "usr/local/nvidia/toolkit")
"""Besides where programs are: where the GPU operator puts the toolkit."""

_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", "tmp/nvidia-mps")
"""What the toolkit describes where it is there: a service that came or went is a reason to ask it again."""
_COMPANIONS: Final = (
    ("usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
    ("etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
    ("usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
    ("usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    ("etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
    ("usr/share/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin"),
)
"""By which loaders of Vulkan, EGL, OpenCL and OptiX find the libraries; the first source of a place counts."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_MOST_LIBRARIES: Final = 256


class DriverTree:
    """Below `driver_root_mount` this process sees what the host calls `driver_root`. No method takes long."""

    def __init__(self, *, driver_root: Path, driver_root_mount: Path, machine: str | None = None) -> None:
        self.host_root = PurePosixPath(driver_root)
        self.root = driver_root_mount
        self.machine = machine or platform.machine()
        self._resolved: dict[str, Path] = {}

    def find_toolkit(self) -> PurePosixPath | None:
        """The container toolkit's `nvidia-ctk`, from `/` of the driver's root; None: it is not there."""
        return self._find_program(TOOLKIT)

    def find_hook(self) -> PurePosixPath | None:
        """The same for `nvidia-cdi-hook`, which container runtimes run."""
        return self._find_program(HOOK)

    def see(self, host_path: str) -> Path | None:
        """Where this process finds a path of the host, links followed; None: it is not there, or cannot be seen."""
        path = PurePosixPath(host_path)
        if not path.is_relative_to(self.host_root):
            return None
        try:
            seen = resolve_below(self.root, path.relative_to(self.host_root))
            return seen if seen.exists() else None
        except OSError:
            return None

    def exists(self, host_path: str) -> bool:
        """Whether the host has this path."""
        return self.see(host_path) is not None

    def render_key(self, driver_version: str, *, wanted: str) -> str:
        """A text that changes when another toolkit, hook or service is there, or another source is wanted."""
        programs = [self._describe(program) for program in (self.find_toolkit(), self.find_hook())]
        sockets = [name for name in _SOCKETS if (self.root / name).exists()]
        facts = ("1", driver_version, wanted, self.machine, str(self.host_root), *programs, *sockets)
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    def identify(self, edits: DriverEdits) -> tuple[FileIdentity, ...]:
        """Of every file that must be there. StateError where one went meanwhile."""
        paths = (mount.host_path for mount in edits.mounts if not mount.is_passing)
        return tuple(self._identify(path) for path in dict.fromkeys((*paths, *(hook.path for hook in edits.hooks))))

    def find_change(self, identities: Iterable[FileIdentity]) -> str:
        """The first of these files that is another one now, or gone; "" where all are as they were."""
        for known in identities:
            try:
                now = self._identify(known.host_path)
            except StateError:
                return known.host_path
            if now != known:
                return known.host_path
        return ""

    def find_missing(self, edits: DriverEdits) -> frozenset[str]:
        """Host paths of services' sockets that are not there at this moment."""
        return frozenset(
            mount.host_path for mount in edits.mounts if mount.is_passing and not self.exists(mount.host_path)
        )

    def find_library_edits(self, driver_version: str) -> DriverEdits:
        """Mounts of the driver's libraries by SONAME, and of what belongs to them. StateError: no CUDA to be found."""
        libraries = list(self._list_libraries(driver_version))
        if not any(library.soname == f"{CUDA}.1" for library in libraries):
            raise StateError(
                f"there is no {CUDA}.{driver_version} for {self.machine} in {', '.join(LIBRARY_FOLDERS)} below "
                f"{self.root}"
            )
        return DriverEdits(
            mounts=(*plan_library_mounts(libraries, machine=self.machine), *self._list_companions()),
        )

    def _list_libraries(self, driver_version: str) -> Iterator[Library]:
        """Files named after this version of the driver, of this machine's kind, in the order of the folders."""
        seen: set[Path] = set()
        for folder in LIBRARY_FOLDERS:
            try:
                place = resolve_below(self.root, PurePosixPath(folder))
                files = sorted(place.glob(f"lib*.so.{driver_version}")) if place not in seen else []
            except OSError:
                continue  # a folder that cannot be looked into has nothing to give
            seen.add(place)
            for file in files[:_MOST_LIBRARIES]:
                soname = self._read_soname(file)
                if soname:
                    yield Library(host_path=self._on_host(file), soname=soname)

    def _read_soname(self, file: Path) -> str:
        """The file's own name where it has none that could be a file's; "" for what no program here could load."""
        try:
            found = read_shared_object(resolve_below(self.root, PurePosixPath(file.relative_to(self.root))))
        except OSError:
            return ""
        if found is None or found.machine != MACHINES.get(self.machine):
            return ""
        return found.soname if _NAME.fullmatch(found.soname) else file.name

    def _list_companions(self) -> Iterator[FileMount]:
        done: set[str] = set()
        for source, container_path in _COMPANIONS:
            host_path = str(self.host_root / source)
            if container_path not in done and self.exists(host_path):
                done.add(container_path)
                yield FileMount(host_path=host_path, container_path=container_path)

    def _find_program(self, name: str) -> PurePosixPath | None:
        for folder in TOOLKIT_FOLDERS:
            path = PurePosixPath("/", folder, name)
            try:
                if resolve_below(self.root, path).is_file():
                    return path
            except OSError:
                continue  # likewise
        return None

    def _describe(self, program: PurePosixPath | None) -> str:
        if program is None:
            return "none"
        try:
            return str(self._identify(str(self.host_root / program.relative_to("/"))))
        except StateError:
            return "none"

    def _identify(self, host_path: str) -> FileIdentity:
        facts = self._stat(host_path)
        if facts is None:
            raise StateError(f"{host_path} is gone from the host")
        if not stat.S_ISREG(facts.st_mode):
            return FileIdentity(host_path=host_path, inode=0, size_bytes=0, modified_ns=0)  # that it is there counts
        return FileIdentity(
            host_path=host_path, inode=facts.st_ino, size_bytes=facts.st_size, modified_ns=facts.st_mtime_ns
        )

    def _stat(self, host_path: str) -> os.stat_result | None:
        """Every prepare asks this of every library, so links are followed by hand only where the file moved."""
        for _ in range(2):
            seen = self._resolved.get(host_path)
            try:
                if seen is not None:
                    return seen.stat()
            except OSError:
                del self._resolved[host_path]
            seen = Path(os.devnull) if host_path == os.devnull else self.see(host_path)
            if seen is None:
                return None
            self._resolved[host_path] = seen
        return None

    def _on_host(self, seen: Path) -> str:
        return str(self.host_root / seen.relative_to(self.root))
