"""`python -m image VERB`: what `make image`, `make image-lock` and `make lint` run."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from image import build, lockfile


def main() -> int:
    """Exit code 1 with a sentence where something does not fit."""
    parser = argparse.ArgumentParser(prog="python -m image", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("lock", help="write image/lock anew from pyproject.toml and constraints.txt (asks the index)")
    verbs.add_parser("check", help="say whether image/lock fits these two (asks nobody)")
    fill = verbs.add_parser("wheels", help="fill wheels/ for an engine that builds the Dockerfile by itself")
    make = verbs.add_parser("build", help="build the image and write it as an OCI archive")
    for verb in (fill, make):
        verb.add_argument("--arch", default="", choices=["", *lockfile.PLATFORMS], help="default: this machine's")
    make.add_argument("--tag", default=f"tesela:{build.get_version()}", help="name of the image (%(default)s)")
    make.add_argument("--output", type=Path, help="the archive (build/NAME-VERSION-ARCH.tar)")
    make.add_argument("--base", help=f"base image; {build.DEBIAN_BASE}: a Debian tree made here")
    make.add_argument("--engine", default="auto", choices=["auto", *build.ENGINES], help="default: what works here")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except lockfile.ImageError as error:
        print(f"[image] {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "lock":
        for lock in (*lockfile.PLATFORMS, lockfile.TOOLS):
            (lockfile.LOCKS / f"{lock}.txt").write_text(lockfile.render_lock(lock, lockfile.resolve(lock)))
        return 0
    if arguments.verb == "check":
        faults = lockfile.check()
        print("\n".join(faults) or "image/lock fits")
        return 1 if faults else 0
    architecture = arguments.arch or build.get_architecture()
    if arguments.verb == "wheels":
        build.fill_context(lockfile.ROOT, architecture)
        return 0
    return _build(arguments, architecture)


def _build(arguments: argparse.Namespace, architecture: str) -> int:
    began = time.monotonic()
    name = arguments.tag.rsplit("/", 1)[-1].replace(":", "-")
    output = arguments.output or lockfile.ROOT / "build" / f"{name}-{architecture}.tar"
    request = build.Request(
        reference=arguments.tag,
        archive=output,
        base=arguments.base or None,
        architecture=architecture,
        engine=arguments.engine,
    )
    facts = build.build(request, get_cache(), lambda line: print(f"[image] {line}", file=sys.stderr, flush=True))
    mib = 1 << 20
    print(f"{output}: {facts.reference}, {facts.manifest_digest}")
    print(f"{build.get_sbom(output)}: what is in it")
    print(f"{facts.compressed_bytes / mib:.1f} MiB to pull, {facts.unpacked_bytes / mib:.1f} MiB on disk; ", end="")
    print(f"built in {time.monotonic() - began:.0f} s")
    return 0


def get_cache() -> Path:
    """The image's part of the folder that outlives checkouts."""
    return Path(os.environ.get("TESELA_CACHE") or Path.home() / ".cache" / "tesela") / "image"


if __name__ == "__main__":
    sys.exit(main())
