"""Runs while the image is built: the driver itself and the list of all that is in the image, alone in /image-driver."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from dependencies import HOME, IMAGE, TOOLS, compile_all, install

sys.path.insert(0, TOOLS)

import sbom

LAYER = Path("/image-driver")
_LOCKED = re.compile(r"(\S+)==\S+ --hash=sha256:([0-9a-f]{64})")


def main() -> None:
    """Installs the driver's wheel where the dependencies' layer will have room for it."""
    wheel = next(Path("/build/tesela").glob("tesela-*.whl"))
    install("--root", str(LAYER), "--prefix", str(HOME), str(wheel))
    packages = next(LAYER.glob("opt/tesela/lib/python3.*/site-packages"))
    compile_all(LAYER, str(packages.relative_to(LAYER)))
    _write_sbom(wheel, packages)


def _write_sbom(wheel: Path, packages: Path) -> None:
    architecture = os.environ["TARGETARCH"]
    locked = _LOCKED.findall(Path("/build/lock", f"{architecture}.txt").read_text())
    hashes = {re.sub(r"[-_.]+", "-", name).lower(): digest for name, digest in locked}
    hashes["tesela"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    components = [
        *sbom.list_distributions([packages, IMAGE / packages.relative_to(LAYER)], hashes),
        sbom.make_interpreter(platform.python_version()),
        *sbom.list_debian(IMAGE),
    ]
    subject = sbom.Subject(
        version=wheel.name.split("-")[1],
        architecture=architecture,
        created=datetime.fromisoformat(os.environ["CREATED"]),
    )
    target = LAYER / sbom.PATH
    target.parent.mkdir(parents=True)
    target.write_text(sbom.render_sbom(subject, components))


if __name__ == "__main__":
    main()
