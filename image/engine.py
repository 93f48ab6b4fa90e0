"""Whatever of docker, podman and buildah works here, behind five calls. Only buildah runs where this is tested."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from image.lockfile import ImageError

ENGINES = ("docker", "podman", "buildah")
_PROBE_TIMEOUT_S = 20
_PULL_TIMEOUT_S = 300
_BUILD_TIMEOUT_S = 1800
_MOST_IMAGES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A program and the options that come first."""

    name: str
    options: tuple[str, ...] = ()
    keeps_layers: bool = True

    def pull(self, image: str) -> str | None:
        """Fetches an image that is not here yet; None, or what went wrong."""
        if self._run(["inspect", "--type", "image", image]).returncode == 0:
            return None
        try:
            done = self._run(["pull", image], timeout_s=_PULL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"no answer within {_PULL_TIMEOUT_S} s"
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        return lines[-1] if done.returncode else None

    def load_tree(self, tree: Path, image: str) -> None:
        """Makes an image of a tar archive of a root file system, unless one of that name is here."""
        if self._run(["inspect", "--type", "image", image]).returncode == 0:
            return
        if self.name != "buildah":
            self._must(["import", str(tree), image], "make an image of the Debian tree")
            return
        container = self._must(["from", "scratch"], "begin an image").strip()
        try:
            self._must(["add", "--quiet", container, str(tree), "/"], "unpack the Debian tree")
            self._must(["commit", "--quiet", container, image], "make an image of the Debian tree")
        finally:
            self._run(["rm", container])

    def build(self, context: Path, image: str, arguments: Mapping[str, str], *, platform: str, epoch: int) -> None:
        """Runs the Dockerfile of `context`; ImageError with the end of what the engine said."""
        command = {"docker": ["build"], "podman": ["build"], "buildah": ["build", "--isolation", "chroot"]}[self.name]
        if self.name != "docker":
            command += [f"--layers={str(self.keeps_layers).lower()}", "--timestamp", str(epoch), "--format", "oci"]
            command += ["--pull-never"] if self.name == "buildah" else ["--pull=never"]
        command += ["--platform", platform, "--tag", image]
        for name, value in arguments.items():
            command += ["--build-arg", f"{name}={value}"]
        self._must([*command, str(context)], "build the image", timeout_s=_BUILD_TIMEOUT_S)

    def save(self, image: str, archive: Path) -> None:
        """Writes the image as an OCI archive."""
        archive.unlink(missing_ok=True)
        if self.name == "docker":
            command = ["save", "--output", str(archive), image]
        elif self.name == "podman":
            command = ["save", "--quiet", "--format", "oci-archive", "--output", str(archive), image]
        else:
            command = ["push", "--quiet", image, f"oci-archive:{archive}"]
        self._must(command, "write the image's archive")

    def forget_old(self) -> None:
        """Empties buildah's store of ours when layers of many builds have piled up in it."""
        if self.name == "buildah":
            images = self._run(["images", "--all", "--quiet"]).stdout.split()
            if len(images) > _MOST_IMAGES or not self.keeps_layers:
                self._run(["rmi", "--all", "--force"])

    def _must(self, arguments: Sequence[str], what: str, *, timeout_s: float = _PULL_TIMEOUT_S) -> str:
        try:
            done = self._run(arguments, timeout_s=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ImageError(f"cannot {what}: {self.name} took over {timeout_s:g} s") from error
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-3000:]
            raise ImageError(f"cannot {what}: `{self.name} {arguments[0]}` ended with {done.returncode}:\n{said}")
        return done.stdout

    def _run(
        self, arguments: Sequence[str], *, timeout_s: float = _PROBE_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 -- our own arguments, no shell
            [self.name, *self.options, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def find_engine(wanted: str, store: Path) -> Engine:
    """The engine called `wanted`, or with `auto` the first that works; ImageError where none does.

    `store` is where buildah keeps layers, so that a build leaves nothing in the machine's own storage.
    """
    for name in ENGINES if wanted == "auto" else (wanted,):
        if shutil.which(name) is None:
            continue
        if name != "buildah":
            with contextlib.suppress(subprocess.TimeoutExpired):
                if Engine(name=name)._run(["info"]).returncode == 0:  # noqa: SLF001 -- the same file
                    return Engine(name=name)
            continue
        given = os.environ.get("STORAGE_DRIVER")
        for driver in (given,) if given else ("overlay", "vfs"):
            options = ("--root", f"{store}/{driver}", "--runroot", f"{store}/{driver}-run", "--storage-driver", driver)
            engine = Engine(name=name, options=options, keeps_layers=driver == "overlay")
            if engine._run(["images"]).returncode == 0:  # noqa: SLF001
                return engine
    raise ImageError(
        f"no container engine works here (looked for {', '.join(ENGINES) if wanted == 'auto' else wanted}): install "
        "one, on Debian `apt-get install buildah`, and start its service if it has one"
    )
