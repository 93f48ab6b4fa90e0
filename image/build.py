"""One build from the working tree to an archive: wheels, base, Dockerfile, archive."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from image import archive, debian
from image.engine import ENGINES, Engine, find_engine
from image.lockfile import PLATFORMS, ROOT, ImageError
from image.wheels import SOURCES, build_wheel, fill_wheels

__all__ = ["ENGINES"]
DEFAULT_BASE = "python:3.11-slim-bookworm"
DEBIAN_BASE = "debian-tree"
"""As a base: a Debian tree made here, no registry asked."""
_INPUTS = ("Dockerfile", "image", *SOURCES)
_EPOCH = 1_577_836_800
"""2020: the time of all files. A layer made again is the same, and a release whose dependencies are those of the last
one shares the large layer with it. Of a tree without history it is also the time of the image.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to build. `base` is None for the default base where the engine can get it, else a Debian tree."""

    reference: str
    archive: Path
    base: str | None = None
    architecture: str = ""
    engine: str = "auto"


def get_version() -> str:
    """The driver's, read without importing it."""
    text = (ROOT / "driver/tesela/__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ImageError("driver/tesela/__init__.py has no __version__")
    return found[1]


def get_architecture() -> str:
    """This machine's, as containers call it."""
    machine = os.uname().machine
    found = next((name for name, called in PLATFORMS.items() if called == machine), None)
    if found is None:
        raise ImageError(f"there are no wheels for {machine}, only for {', '.join(PLATFORMS.values())}")
    return found


def get_sbom(path: Path) -> Path:
    """Where the list of what is in an archive lies: beside it."""
    return path.with_suffix(".sbom.cdx.json")


def list_inputs() -> list[Path]:
    """The files of the working tree that the image is made of, but for the wheels that its locks name."""
    paths = [
        path for name in _INPUTS for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])
    ]
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def build(request: Request, cache: Path, say: Callable[[str], None]) -> archive.Facts:
    """Builds and returns what the archive holds. `cache` keeps wheels, Debian trees and layers between builds."""
    architecture = request.architecture or get_architecture()
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "build.lock"), tempfile.TemporaryDirectory(prefix="tesela-image-") as scratch:
        engine = find_engine(request.engine, cache / f"buildah-{_EPOCH}")
        base = _get_base(engine, request.base, architecture, cache, say)
        say(f"wheels of image/lock/{architecture}.txt")
        fill_wheels(cache / "wheels", architecture)
        context = _fill_context(Path(scratch), cache / "wheels", architecture)
        say(f"Dockerfile, on {base}, with {engine.name}")
        arguments = {
            "BASE": base,
            "TARGETARCH": architecture,
            "VERSION": get_version(),
            "REVISION": _get_revision(),
            "CREATED": datetime.fromtimestamp(_get_time(), UTC).isoformat(),
        }
        engine.build(context, request.reference, arguments, platform=f"linux/{architecture}", epoch=_EPOCH)
        written = Path(scratch, "image.tar")
        engine.save(request.reference, written)
        request.archive.parent.mkdir(parents=True, exist_ok=True)
        archive.rewrite(written, request.archive, request.reference)
        get_sbom(request.archive).write_bytes(archive.read_file(request.archive, archive.SBOM))
        engine.forget_old()
    return archive.read_facts(request.archive)


def _get_base(engine: Engine, base: str | None, architecture: str, cache: Path, say: Callable[[str], None]) -> str:
    if base not in {None, DEBIAN_BASE}:
        trouble = engine.pull(str(base))
        if trouble:
            raise ImageError(f"{engine.name} cannot get the base {base}: {trouble}")
        return str(base)
    if base is None:
        trouble = engine.pull(DEFAULT_BASE)
        if trouble is None:
            return DEFAULT_BASE
        say(f"{engine.name} cannot get {DEFAULT_BASE} ({trouble}); a Debian tree is made instead")
    recipe = hashlib.sha256(Path(debian.__file__).read_bytes()).hexdigest()[:12]
    tree = cache / f"debian-{debian.SUITE}-{architecture}-{recipe}.tar"
    if not tree.exists():
        say(f"Debian tree {tree.name}, a minute")
        debian.make_tree(tree, architecture)
    image = f"localhost/tesela-base:{architecture}-{recipe}"
    engine.load_tree(tree, image)
    return image


def _fill_context(scratch: Path, wheels: Path, architecture: str) -> Path:
    """A folder with what .dockerignore lets through, and nothing else."""
    context = scratch / "context"
    shutil.copytree(ROOT / "image", context / "image", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "Dockerfile", context / "Dockerfile")
    for name in (architecture, "tools"):
        shutil.copytree(wheels / name, context / "wheels" / name)
    build_wheel(context / "wheels", epoch=_EPOCH)
    return context


def fill_context(folder: Path, architecture: str) -> None:
    """Makes FOLDER/wheels what the Dockerfile expects, for an engine that is run by hand."""
    fill_wheels(folder / "wheels", architecture)
    build_wheel(folder / "wheels", epoch=_EPOCH)


def _get_time() -> int:
    """SOURCE_DATE_EPOCH, else when the inputs were last committed: what the image says of its age."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        return int(given)
    told = _git("log", "-1", "--format=%ct", "--", *_INPUTS)
    return int(told) if told.isdigit() else _EPOCH


def _get_revision() -> str:
    told = _git("log", "-1", "--format=%H", "--", *_INPUTS)
    return f"{told}-changed" if told and _git("status", "--porcelain", "--", *_INPUTS) else told


def _git(*arguments: str) -> str:
    """What git says, or nothing where this is no checkout."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
