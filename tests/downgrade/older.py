"""The release before: the last commit whose records were of the version before today's, as an installed package.

Its wheel is built from this checkout's own history, once per commit, and unpacked into the cache; the packages that it
needs are those of the running environment.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from built_once import get_cache

ROOT = Path(__file__).resolve().parents[2]
_RECORD = "driver/tesela/edge/documents/record.py"
_SOURCES = ("driver", "pyproject.toml", "README.md", "LICENSE")
_VERSION = re.compile(r"\bversion=(\d+)")
_BUILD_S = 300


def build_release_before() -> Path:
    """The folder of that release's package. AssertionError with a sentence where the history does not reach so far."""
    return _build(find_release_before())


def find_release_before() -> str:
    """The parent of the commit that gave records the version that they have here."""
    today = _read_version((ROOT / _RECORD).read_text())
    earliest = ""
    for commit in _git("log", "--format=%H", "--", _RECORD).decode().split():
        if _read_version(_git("show", f"{commit}:{_RECORD}").decode()) != today:
            break
        earliest = commit
    parent = _try_git("rev-parse", "--verify", "--quiet", f"{earliest}^{{commit}}^") if earliest else None
    assert parent, (
        f"this checkout's history does not reach back to the release whose records were of version {today - 1}, which "
        "this test runs: clone the whole of it, or `git fetch --unshallow`"
    )
    return parent.decode().strip()


def _build(commit: str) -> Path:
    home = get_cache() / f"release-{commit[:16]}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            source, wheels, package = (Path(scratch, name) for name in ("source", "wheels", "package"))
            with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, *_SOURCES))) as archive:
                archive.extractall(source, filter="data")
            build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*build, f"--wheel-dir={wheels}", source], capture_output=True, text=True, check=False, timeout=_BUILD_S
            )
            assert done.returncode == 0, f"the wheel of {commit} was not built:\n{done.stdout}{done.stderr}"
            with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
                wheel.extractall(package)
            package.rename(home)
    return home


def _read_version(text: str) -> int:
    found = _VERSION.search(text)
    assert found, f"{_RECORD} names no version"
    return int(found[1])


def _git(*arguments: str) -> bytes:
    answer = _try_git(*arguments)
    assert answer is not None, f"`git {' '.join(arguments)}` failed: this test runs in a clone of the repository"
    return answer


def _try_git(*arguments: str) -> bytes | None:
    # A checkout may be somebody else's than this process's, as in a container of a build service.
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
