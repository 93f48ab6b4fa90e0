"""The genuine allocator: builds the Go program in `scheduler/`, once per content, and runs it on worlds."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODULE = Path(__file__).resolve().parent / "scheduler"
BUILD_TIMEOUT_S = 1200
RUN_TIMEOUT_S = 1200


def build(go: str = "go") -> Path:
    """The program's path, built with `go` if this content was not built before; in $TESELA_CACHE or ~/.cache/tesela."""
    digest = hashlib.sha256(os.uname().machine.encode())
    for file in sorted(MODULE.iterdir()):
        digest.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    cache = Path(os.environ.get("TESELA_CACHE") or Path.home() / ".cache" / "tesela")
    program = cache / f"allocator-compare-{digest.hexdigest()[:16]}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / "program"
            command = [go, "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", str(fresh), "."]
            environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
            subprocess.run(command, cwd=MODULE, check=True, env=environment, timeout=BUILD_TIMEOUT_S)
            fresh.rename(program)
    return program


def judge_all(program: Path, worlds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The genuine verdicts, one per world."""
    lines = "".join(json.dumps(world) + "\n" for world in worlds)
    done = subprocess.run(
        [str(program)], input=lines, capture_output=True, text=True, check=True, timeout=RUN_TIMEOUT_S
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
