"""A Debian root with python3, for machines whose container engine has no registry to get a base from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from image.lockfile import ImageError

SUITE = "bookworm"
_PACKAGES = ("python3",)
_TIMEOUT_S = 900


def make_tree(archive: Path, architecture: str) -> None:
    """Writes a tar archive of Debian's packages as they are today, security updates among them, with mmdebstrap."""
    if shutil.which("mmdebstrap") is None:
        raise ImageError("there is no mmdebstrap: `apt-get install mmdebstrap` (root), or name a base image with BASE=")
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_name(f".{archive.name}")
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}", "--format=tar"]
    command += [f"--architectures={architecture}", SUITE, str(partial)]
    try:
        done = subprocess.run(  # noqa: S603 -- our own arguments, no shell
            command,
            env={**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "1672531200")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"mmdebstrap took over {_TIMEOUT_S} s") from error
    if done.returncode:
        raise ImageError(f"mmdebstrap ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    partial.rename(archive)
