"""Folders of wheels: filled from the locks and the index, and the driver's own wheel built from the working tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from image.lockfile import LOCKS, PLATFORMS, PYTHON, ROOT, TOOLS, ImageError, Wheel, read_lock

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "driver/tesela")
"""What the driver's wheel is made of."""
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def fill_wheels(folder: Path, architecture: str) -> None:
    """Makes FOLDER/<architecture> and FOLDER/tools hold exactly the wheels of their locks, every hash compared.

    Fetches what is missing. ImageError where the index does not have it, or has another file of that name.
    """
    for lock in (architecture, TOOLS):
        _fill(folder / lock, lock)


def _fill(folder: Path, lock: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wheels = read_lock(lock)
    names = {wheel.wheel for wheel in wheels}
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    if not all(_is_intact(folder, wheel) for wheel in wheels):
        machine = PLATFORMS.get(lock)
        platforms = sorted({name for wheel in wheels for name in _list_platforms(wheel.wheel)}) if machine else ["any"]
        command = [*_PIP, "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", PYTHON, "--dest", str(folder), "-r", str(LOCKS / f"{lock}.txt")]
        _run([*command, *(f"--platform={name}" for name in platforms)], f"fetch the wheels of image/lock/{lock}.txt")
    broken = [wheel.wheel for wheel in wheels if not _is_intact(folder, wheel)]
    if broken:
        raise ImageError(f"{folder} lacks, or has with another hash: {', '.join(broken)}; empty it and try again")


def _list_platforms(wheel: str) -> list[str]:
    """The platform tags of a wheel's file name, its last part."""
    return [tag for tag in wheel.removesuffix(".whl").rsplit("-", 1)[-1].split(".") if tag != "any"]


def _is_intact(folder: Path, wheel: Wheel) -> bool:
    path = folder / wheel.wheel
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == wheel.sha256


def build_wheel(folder: Path, *, epoch: int) -> Path:
    """The driver's wheel in FOLDER/tesela. It is built from a copy, so that nothing stale of a checkout gets in."""
    target = folder / "tesela"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in SOURCES:
            source, copy = ROOT / name, Path(scratch, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, copy)
        command = [*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), scratch]
        _run(command, "build the driver's wheel", SOURCE_DATE_EPOCH=str(epoch))
    return next(target.glob("tesela-*.whl"))


def _run(command: Sequence[str], what: str, **environment: str) -> None:
    done = subprocess.run(  # noqa: S603 -- our own arguments, no shell
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ImageError(f"cannot {what}: {(done.stderr or done.stdout).strip()[-2000:]}")
