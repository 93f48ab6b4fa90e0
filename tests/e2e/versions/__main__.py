"""Tries every feature on every release of Kubernetes, with its own gates and with ours open; writes docs/versions.json.

    make e2e-versions                    all of them (root; the first time it builds three control planes)
    make e2e-versions VERSIONS=1.34      one, and the others' results stay

Exit code 1 where something that was expected of a release did not work: what stood in the file before.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from e2e.harness import build
from e2e.harness.build import HarnessError
from e2e.harness.progress import say, step
from e2e.versions.features import FEATURES, OPENED, Opened
from e2e.versions.plane import Scene, VersionPlane, join_binaries
from e2e.versions.table import read_results, write_results

Run = dict[str, str]
"""By feature, what was seen instead; the empty text: it works."""


def main(minors: Sequence[str]) -> int:
    """Runs the releases named, else all of them."""
    build.prepare()
    current = ".".join(build.KUBERNETES_VERSION.removeprefix("v").split(".")[:2])
    known = [*build.list_control_planes(), current]
    if unknown := set(minors) - set(known):
        say(f"no such release here: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    before = read_results().get("releases", {})
    results = {minor: one for minor, one in before.items() if minor in known}
    for minor in minors or known:
        release = build.KUBERNETES_VERSION if minor == current else build.read_control_plane_version(minor)
        results[minor] = {"release": release, "default": run(minor)}
        if opened := OPENED.get(minor):
            results[minor] |= {"opened": asdict(opened), "open": run(minor, opened)}
    write_results(
        {
            "features": {one.name: {"says": one.says, "gate": one.gate} for one in FEATURES},
            "releases": {minor: results[minor] for minor in known if minor in results},
        }
    )
    lost = list(_list_lost(before, results))
    for line in lost:
        say(f"worked before: {line}")
    return 1 if lost else 0


def run(minor: str, opened: Opened | None = None) -> Run:
    """One release, all features, one after the other on one cluster."""
    opened = opened or Opened(gates=())
    named = f"Kubernetes {minor}{' with gates' if opened.gates else ''}"
    with tempfile.TemporaryDirectory() as folder, step(named, every_s=60):
        plane = VersionPlane(join_binaries(minor, Path(folder) / "bin"), opened.served)
        plane.up(feature_gates=dict.fromkeys(opened.gates, True))
        try:
            scene = Scene(plane)
            seen = {}
            for feature in FEATURES:
                seen[feature.name] = _shorten(feature.attempt(scene))
                scene.clear()
                say(f"{named}: {feature.says}: {seen[feature.name] or 'works'}")
            scene.close()
        finally:
            plane.down()
    return seen


def _shorten(text: str) -> str:
    """One line that is the same the next time: no paths of this run."""
    line = re.sub(r"`[^`]*` ended with \d+: ", "", " ".join(text.split()))
    return line if len(line) <= 300 else line[:299] + "…"


def _list_lost(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What works no longer."""
    for minor, runs in after.items():
        for kind in ("default", "open"):
            then = before.get(minor, {}).get(kind, {})
            for name, seen in runs.get(kind, {}).items():
                if seen and then.get(name) == "":
                    yield f"{minor}, {kind} gates: {name}: {seen}"


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except HarnessError as error:
        sys.exit(f"[e2e] {error}")
    sys.exit(code)
