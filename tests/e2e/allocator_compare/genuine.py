"""The genuine allocator: builds the Go program in `scheduler/`, once per content, and runs it on worlds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from built_once import build_once

MODULE = Path(__file__).resolve().parent / "scheduler"
BUILD_TIMEOUT_S = 1200
RUN_TIMEOUT_S = 1200


def build(go: str = "go") -> Path:
    """The program's path, built with `go` if this content was not built before."""

    def compile_to(program: Path) -> None:
        command = [go, "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", str(program), "."]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        subprocess.run(command, cwd=MODULE, check=True, env=environment, timeout=BUILD_TIMEOUT_S)

    return build_once("allocator-compare", MODULE, compile_to)


def judge_all(program: Path, worlds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The genuine verdicts, one per world."""
    lines = "".join(json.dumps(world) + "\n" for world in worlds)
    done = subprocess.run(
        [str(program)], input=lines, capture_output=True, text=True, check=True, timeout=RUN_TIMEOUT_S
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
