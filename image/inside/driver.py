"""Runs while the image is built: the driver itself, alone in /image-driver."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from dependencies import HOME, compile_all, install

IMAGE = Path("/image-driver")


def main() -> None:
    """Installs the driver's wheel where the dependencies' layer will have room for it."""
    wheel = next(Path("/build/tesela").glob("tesela-*.whl"))
    install("--root", str(IMAGE), "--prefix", str(HOME), str(wheel))
    packages = next(IMAGE.glob("opt/tesela/lib/python3.*/site-packages"))
    compile_all(IMAGE, str(packages.relative_to(IMAGE)))


if __name__ == "__main__":
    main()
