"""The genuine allocator: builds the Go program beside, once per content, and runs it on worlds."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent
BUILD_TIMEOUT_S = 1200
RUN_TIMEOUT_S = 600


def build(go: str = "go") -> Path:
    """The program's path, built if this content was not built before; under $TESELA_CACHE or ~/.cache/tesela."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((SOURCE / name).read_bytes())
    cache = Path(os.environ.get("TESELA_CACHE") or Path.home() / ".cache" / "tesela")
    program = cache / f"allocator-compare-{digest.hexdigest()[:16]}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / "program"
            command = [go, "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", str(fresh), "."]
            subprocess.run(command, cwd=SOURCE, check=True, timeout=BUILD_TIMEOUT_S)
            fresh.rename(program)
    return program


def judge_all(program: Path, worlds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The genuine verdicts, one per world."""
    lines = "".join(json.dumps(world) + "\n" for world in worlds)
    done = subprocess.run(
        [str(program)], input=lines, capture_output=True, text=True, check=True, timeout=RUN_TIMEOUT_S
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
