"""Runs while the image is built: makes /opt/tesela with the locked wheels, and /image with it and what it stands on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from debian import copy_root
from trim import UNUSED_DISTRIBUTIONS, trim

HOME = Path("/opt/tesela")
PYTHON = HOME / "bin" / "python3"
IMAGE = Path("/image")
TOOLS = "/build/site"
"""Where the build has what only it uses."""
COMPILE = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")


def compile_all(root: Path, *folders: str) -> None:
    """Byte code that is never compared with its source: the file system is read-only, and times are all the same."""
    paths = [str(root / folder) for folder in folders]
    subprocess.run([sys.executable, "-I", *COMPILE, "-s", str(root), "-p", "/", *paths], check=True)


def install(*arguments: str) -> None:
    """Runs pip from its own wheel, so that it is nowhere installed."""
    pip = next(Path("/build/tools").glob("pip-*.whl")) / "pip"
    quiet = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]
    command: list[str | Path] = [PYTHON, pip, "install", *quiet, "--no-index", "--no-deps", "--no-compile", *arguments]
    subprocess.run(command, check=True)


def main() -> None:
    """Everything that does not change with the driver's code, so that it is a layer of its own."""
    python = Path(sys.executable).resolve()  # a venv made through a link looks for its library beside the link
    subprocess.run([python, "-I", "-m", "venv", "--without-pip", "--symlinks", HOME], check=True)
    lock = Path("/build/lock", f"{os.environ['TARGETARCH']}.txt").read_text().splitlines()
    wanted = [line for line in lock if line.partition("==")[0] not in UNUSED_DISTRIBUTIONS]
    Path("/build/wanted.txt").write_text("\n".join(wanted) + "\n")
    install("--find-links", "/build/wheels", "--require-hashes", "-r", "/build/wanted.txt")
    packages = next(HOME.glob("lib/python3.*/site-packages"))
    idle = trim(packages)
    if idle:
        sys.exit(f"image/inside/trim.py has patterns that fit no file: {', '.join(idle)}")
    for script in (HOME / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()
    install("--target", TOOLS, *(str(wheel) for wheel in Path("/build/tools").glob("*.whl")))
    copy_root(IMAGE, packages.rglob("*.so*"))
    (IMAGE / "opt").mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", HOME, IMAGE / "opt"], check=True)
    stdlib = Path(os.__file__).parent.relative_to("/")
    compile_all(IMAGE, str(stdlib), str(packages.relative_to("/")))


if __name__ == "__main__":
    main()
