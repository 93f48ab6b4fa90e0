"""Programs that tests build from a folder of sources, once per content, into a cache that outlives checkouts."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def get_cache() -> Path:
    """The folder that outlives checkouts: $TESELA_CACHE, else ~/.cache/tesela."""
    return Path(os.environ.get("TESELA_CACHE") or Path.home() / ".cache" / "tesela")


def build_once(name: str, sources: Path, compile_to: Callable[[Path], None]) -> Path:
    """The program's path in the cache; `compile_to` makes it, if it was not made of the files in `sources` before."""
    digest = hashlib.sha256(os.uname().machine.encode())
    for file in sorted(sources.iterdir()):
        digest.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    cache = get_cache()
    program = cache / f"{name}-{digest.hexdigest()[:16]}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / "program"
            compile_to(fresh)
            fresh.rename(program)
    return program
