"""The part of a Debian root that a Python program needs, copied file by file, with the packages it came from.

Kept are: the interpreter and its library without what a service never uses; every shared library that these and the
wheels link; all of the C library, since programs and libraries of the host's NVIDIA driver run on it too; names of
users and of the system. For scanners, `/var/lib/dpkg/status.d` tells of each package of which a file is here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_WHOLE = ("libc6", "libgcc-s1", "libstdc++6")
"""Packages whose shared libraries are kept whether or not something here links them."""
_FILES = (
    *("/etc/os-release", "/usr/lib/os-release", "/etc/debian_version", "/etc/nsswitch.conf", "/etc/passwd"),
    *("/etc/group", "/usr/share/common-licenses"),
)
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "/run"}
_FOLDERS = ("proc", "sys", "dev", "run", "root", "etc/ld.so.conf.d", "usr/lib64", "usr/sbin", "var/lib", "var/tmp")
_NO_MODULES = {
    *("test", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3", "ensurepip", "distutils", "pydoc_data"),
    *("sqlite3", "dbm", "curses", "venv", "site-packages", "dist-packages", "__pycache__", "sitecustomize.py"),
    *("EXTERNALLY-MANAGED", "__phello__", "LICENSE.txt"),
}
_NO_EXTENSIONS = ("_sqlite3", "_tkinter", "_dbm", "_gdbm", "_curses", "readline", "nis.", "_test", "xx", "_ctypes_test")


def copy_root(root: Path, linking: Iterable[Path]) -> None:
    """Fills `root`. `linking` are shared objects that will stand in it and whose libraries are needed too."""
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    for name, target in _LINKS.items():
        if Path("/", name).is_symlink():
            (root / name).symlink_to(target)
    python = Path(os.path.realpath(sys.executable))
    _copy(root, python)
    for name in ("python3", python.name):
        if not os.path.lexists(root / "usr/bin" / name):
            (root / "usr/bin").mkdir(parents=True, exist_ok=True)
            (root / "usr/bin" / name).symlink_to(python)
    modules = _copy_modules(root)
    for path in _find_libraries([python, *modules, *linking]) | set(_list_whole()):
        _copy(root, path)
    for name in _FILES:
        if os.path.lexists(name):
            _copy(root, Path(name))
    if not (root / "etc/nsswitch.conf").exists():
        (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "etc/ld.so.conf").write_text("/usr/local/lib\n")
    subprocess.run(["ldconfig", "-r", str(root)], check=True)
    (root / "var/cache/ldconfig/aux-cache").unlink(missing_ok=True)
    _write_packages(root)


def _copy_modules(root: Path) -> list[Path]:
    """Copies the standard library; its extension modules are the answer."""
    source = Path(sysconfig.get_path("stdlib"))
    extensions = []
    for folder, folders, files in os.walk(source):
        folders[:] = sorted(set(folders) - _NO_MODULES)
        folders[:] = [name for name in folders if not name.startswith("config-")]
        for name in sorted(set(files) - _NO_MODULES):
            path = Path(folder, name)
            if path.parent.name == "lib-dynload":
                if name.startswith(_NO_EXTENSIONS):
                    continue
                extensions.append(path)
            _copy(root, path)
    return extensions


def _find_libraries(programs: Iterable[Path]) -> set[Path]:
    """What the loader finds for each, by absolute path."""
    found = set()
    for program in programs:
        told = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for word in told.split():
            if word.startswith("/") and not word.startswith("/opt/tesela/") and not word.endswith(":"):
                found.add(Path(word))
    return found


def _list_whole() -> list[Path]:
    paths = []
    for package in _WHOLE:
        told = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=True).stdout
        lines = [Path(line) for line in told.splitlines()]
        paths += [path for path in lines if ".so" in path.name and "gconv" not in path.parts and path.is_file()]
    return paths


def _place(path: Path) -> Path:
    """Where a path really is, its last part not followed: /lib/x is /usr/lib/x."""
    return Path(os.path.realpath(path.parent), path.name)


def _copy(root: Path, path: Path) -> None:
    """Copies a file or a folder to its place below `root`; what a link names is copied too."""
    place = _place(path)
    target = root / place.relative_to("/")
    if os.path.lexists(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        target.symlink_to(place.readlink())
        _copy(root, place.parent / place.readlink())
    elif place.is_dir():
        shutil.copytree(place, target, symlinks=True)
    else:
        shutil.copy2(place, target)


def _write_packages(root: Path) -> None:
    """Says of which packages the copied files are, as images without a package manager do, and copies their terms."""
    owners = {}
    for listing in Path("/var/lib/dpkg/info").glob("*.list"):
        for line in listing.read_text().splitlines():
            owners[_place(Path(line))] = listing.name.removesuffix(".list").partition(":")[0]
    files = [Path("/", path.relative_to(root)) for path in root.rglob("*")]
    packages = {owners[path] for path in files if path in owners and not path.is_dir()}
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for stanza in Path("/var/lib/dpkg/status").read_text().split("\n\n"):
        name = stanza.partition("\n")[0].removeprefix("Package: ").strip()
        if name in packages:
            (status / name).write_text(stanza.strip() + "\n")
            terms = Path("usr/share/doc", name, "copyright")  # some packages share a folder by a link
            (root / terms).parent.mkdir(parents=True)
            shutil.copy2(Path("/", terms), root / terms)
