"""The wheels of the image: which, for which processor, with which hash. One lock file for each folder of wheels.

A lock is a requirements file for `pip --require-hashes`: one line for each distribution, with the wheel's file name as
a comment. Versions come from constraints.txt, names from the metadata of what is installed here; `check` compares the
locks with these two and asks no index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "image" / "lock"
PYTHON = "3.11"
PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}
"""Container architecture to the machine's name in the tags of wheels."""
TOOLS = "tools"
_TOOLS = ("pip", "cyclonedx-python-lib")
_GLIBC_MINORS = range(17, 37)  # Debian 12 has glibc 2.36
_LINE = re.compile(r"(?P<name>\S+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})  # (?P<wheel>\S+\.whl)")


class ImageError(Exception):
    """The image cannot be built, or its inputs do not fit; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One line of a lock."""

    name: str
    version: str
    sha256: str
    wheel: str


def list_roots(lock: str) -> tuple[str, ...]:
    """What a lock is made for: the driver's own dependencies with its traces, or what only the build uses."""
    if lock == TOOLS:
        return _TOOLS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return (*project["dependencies"], *project["optional-dependencies"]["traces"])


def parse_lock(text: str) -> tuple[Wheel, ...]:
    """The lines of a lock; ImageError for a line that is neither a wheel nor a comment."""
    wheels = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ImageError(f"line {number} of the lock is not `NAME==VERSION --hash=sha256:…  # WHEEL`: {line}")
        wheels.append(Wheel(**found.groupdict()))
    return tuple(wheels)


def render_lock(lock: str, wheels: Iterable[Wheel]) -> str:
    """The text that `parse_lock` reads."""
    what = "for the build of the image only" if lock == TOOLS else f"of the image on {lock}"
    lines = [f"# Wheels {what}. Written by `make image-lock` from pyproject.toml and constraints.txt."]
    lines += [
        f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}  # {wheel.wheel}"
        for wheel in sorted(wheels, key=lambda one: canonicalize_name(one.name))
    ]
    return "\n".join(lines) + "\n"


def read_lock(lock: str, folder: Path = LOCKS) -> tuple[Wheel, ...]:
    """The lock called `lock`: amd64, arm64 or tools."""
    return parse_lock((folder / f"{lock}.txt").read_text())


def resolve(lock: str) -> tuple[Wheel, ...]:
    """Asks the package index; ImageError where a distribution has no wheel for the processor."""
    machine = PLATFORMS.get(lock)
    names = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS] + [f"manylinux2014_{machine}"]
    platforms = names if machine else ["any"]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), "--target", scratch, "--only-binary=:all:"]
        command += ["--python-version", PYTHON, "--implementation", "cp", "-c", str(ROOT / "constraints.txt")]
        command += [f"--platform={name}" for name in platforms]
        done = subprocess.run([*command, *list_roots(lock)], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise ImageError(f"no set of wheels for {lock}: {done.stderr.strip()}")
        found = json.loads(report.read_text())["install"]
    return tuple(
        Wheel(
            name=one["metadata"]["name"],
            version=one["metadata"]["version"],
            sha256=one["download_info"]["archive_info"]["hashes"]["sha256"],
            wheel=one["download_info"]["url"].rsplit("/", 1)[-1],
        )
        for one in found
    )


def check(folder: Path = LOCKS) -> list[str]:
    """What the locks have wrong, a sentence for each; asks no index."""
    faults = []
    pins = _read_pins()
    for lock in (*PLATFORMS, TOOLS):
        wheels = read_lock(lock, folder)
        locked = {canonicalize_name(wheel.name): wheel.version for wheel in wheels}
        wanted = {name: pins.get(name, "(no version in constraints.txt)") for name in list_closure(list_roots(lock))}
        for name in sorted(locked.keys() | wanted.keys()):
            has, wants = locked.get(name, "nothing"), wanted.get(name, "nothing")
            if has != wants:
                faults.append(f"{lock}.txt has {name} {has}, wanted is {wants}: run `make image-lock`")
        faults += [f"{lock}.txt: {wheel.wheel} does not run there" for wheel in wheels if not _fits(wheel, lock)]
    return faults


def list_closure(roots: Iterable[str]) -> set[NormalizedName]:
    """The names of all distributions that `roots` need on Linux, by the metadata of those installed here."""
    names: set[NormalizedName] = set()
    waiting = [Requirement(root) for root in roots]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *sorted(requirement.extras)):
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            names.add(canonicalize_name(requirement.name))
            needs = (Requirement(text) for text in metadata.requires(requirement.name) or ())
            waiting += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return names


def _read_pins() -> dict[NormalizedName, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def _fits(wheel: Wheel, lock: str) -> bool:
    """Whether the file name's tags are of CPython 3.11 or of any Python, and of the lock's processor or of any."""
    _, _, _, tags = parse_wheel_filename(wheel.wheel)
    machine = PLATFORMS.get(lock, "any")
    return any(
        tag.platform == "any" or (tag.platform.startswith("manylinux") and tag.platform.endswith(machine))
        for tag in tags
        if tag.interpreter in {"py3", "cp311"} or tag.abi == "abi3"
    )
