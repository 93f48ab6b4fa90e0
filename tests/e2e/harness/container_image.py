"""The image that the DaemonSet runs, built of this checkout's Dockerfile on a Debian tree, once per content.

It has python3 (`/opt/tesela/bin/python3`, with the driver's packages) and no shell: a test that needs one runs
`images.BUSYBOX`.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from built_once import get_cache
from e2e.harness.build import HarnessError
from e2e.harness.progress import say, step

from image.build import list_inputs

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = "tesela:0.1.0"
"""What the manifests say."""
KEPT = 6


def build_image(reference: str = REFERENCE) -> Path:
    """The OCI archive of `reference`: two minutes at the first call, half a minute after a change, then nothing."""
    archive = get_cache() / f"image-{_digest(reference)}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs on one machine build once
        if not archive.exists():
            command = [sys.executable, "-m", "image", "build", "--engine", "buildah", "--base", "debian-tree"]
            command += ["--tag", reference, "--output", str(archive)]
            with step("building the container image"):
                done = subprocess.run(
                    command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
                )
            if done.returncode:
                raise HarnessError(f"`{' '.join(command)}` failed:\n{done.stderr[-3000:]}")
            _remove_older()
    return archive


def _remove_older() -> None:
    """Archives of checkouts as they were, but for a few that other test runs may be reading."""
    archives = sorted(get_cache().glob("image-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[KEPT:]:
        for suffix in (".tar", ".sbom.cdx.json", ".lock"):
            old.with_suffix(suffix).unlink(missing_ok=True)


def _digest(reference: str) -> str:
    digest = hashlib.sha256(reference.encode())
    for file in list_inputs():
        digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size} ".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    try:
        say(f"ready: {build_image()}")
    except HarnessError as error:
        sys.exit(f"[e2e] {error}")
