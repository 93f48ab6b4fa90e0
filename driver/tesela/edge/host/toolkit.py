"""NVIDIA's container toolkit of the host, for the one thing that it knows best: which files of the driver are needed.

`nvidia-ctk cdi generate` prints a CDI document and changes nothing. Where this process sees the host's root in a
folder, the program runs with that folder as its root, which has the libraries that it was built for, and its paths are
the host's. Where that cannot be (it takes the right to change the root), it runs as it lies and is told the root.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tesela.core.driver_files import DriverEdits, parse_toolkit_cdi, place_on_host
from tesela.core.errors import DocumentError, TryAgain
from tesela.edge.host.driver_files import HOOK, TOOLKIT_FOLDERS, DriverTree
from tesela.edge.host.driver_root import NVML_LIBRARY, find_library, resolve_below
from tesela.edge.host.program import LARGEST_BYTES, TooMuchOutput, run_program

TIMEOUT_S: Final = 15.0
_HOST_PATH: Final = ":".join(f"/{folder}" for folder in ("usr/local/sbin", "usr/sbin", "sbin", *TOOLKIT_FOLDERS))
_LINKER: Final = "LD_"
_CHANGE_ROOT: Final = (
    sys.executable,
    "-ISc",
    "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])",
)
"""In a process of its own: our image has no chroot program, and this process has threads."""
_MESSAGE: Final = re.compile(r'level=(?:error|fatal) msg="((?:[^"\\]|\\.)*)"')
_ALL_DEVICES: Final = ("--device-id=none",)
"""No device is described, only what all have in common: without it the toolkit refuses where every GPU is in MIG mode
and has no partition yet. Releases before 1.18 do not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way to run it: the command, its environment, and the root that its answer's paths begin with."""

    command: tuple[str, ...]
    environment: dict[str, str]
    seen_root: str


class Toolkit:
    """Runs the program found below the driver's root; no call takes much longer than `timeout_s`."""

    def __init__(self, tree: DriverTree, *, timeout_s: float = TIMEOUT_S) -> None:
        self._tree = tree
        self._timeout_s = timeout_s

    def generate(self) -> DriverEdits:
        """What every container gets, with the host's paths, unchecked. TryAgain says what the toolkit said."""
        program = self._tree.find_toolkit()
        if program is None:
            raise TryAgain(f"there is no nvidia-ctk in {', '.join(TOOLKIT_FOLDERS)} below {self._tree.root}")
        until_s = time.monotonic() + self._timeout_s
        problems: list[str] = []
        for way in self._list_ways(program):
            for more in (_ALL_DEVICES, ()):
                output, problem = self._run((*way.command, *more), way.environment, until_s)
                if problem:
                    problems.append(problem)
                    continue
                try:
                    edits = parse_toolkit_cdi(output)
                except DocumentError as error:
                    raise TryAgain(f"`{program} cdi generate` prints what is no CDI document: {error}") from error
                return place_on_host(edits, seen_root=way.seen_root, host_root=str(self._tree.host_root))
        raise TryAgain(f"`{program} cdi generate` {'; '.join(dict.fromkeys(problems))}; try it on the host")

    def _list_ways(self, program: PurePosixPath) -> Iterator[_Way]:
        generate = ("cdi", "generate", "--format=json")
        root, hook = self._tree.root, self._tree.find_hook()
        if root != Path("/") and os.geteuid() == 0:
            own = {name: value for name, value in os.environ.items() if not name.startswith(_LINKER)}
            yield _Way(
                command=(*_CHANGE_ROOT, str(root), str(program), *generate, *_render_hook_flag(hook, "/")),
                environment=own | {"PATH": _HOST_PATH},
                seen_root="/",
            )
        library = find_library(root, NVML_LIBRARY) if root != Path("/") else None
        preload = {} if library is None else {"LD_PRELOAD": str(library)}
        yield _Way(
            command=(
                str(resolve_below(root, program)),
                *generate,
                f"--driver-root={root}",
                *_render_hook_flag(hook, str(root)),
            ),
            environment=os.environ | preload,
            seen_root=str(root),
        )

    def _run(self, command: Sequence[str], environment: dict[str, str], until_s: float) -> tuple[str, str]:
        """What it printed, and what went wrong; one of them is ""."""
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return "", "took all the time that there is for it"
        try:
            ended = run_program(command, environment, timeout_s=left_s)
        except TimeoutError:
            return "", f"did not end within {self._timeout_s:g} s"
        except TooMuchOutput:
            return "", f"prints more than {LARGEST_BYTES >> 20} MiB"
        except OSError as error:
            return "", f"cannot be run: {error.strerror}"
        if ended.code != 0:
            return "", f"ended with {ended.code} and said: {_find_cause(ended.complaint)}"
        return ended.output, ""


def _render_hook_flag(hook: PurePosixPath | None, root: str) -> tuple[str, ...]:
    """Where the hook lies, as the document is to have it: the toolkit itself looks into the PATH of its process."""
    path = f"/usr/bin/{HOOK}" if hook is None else str(hook)
    return (f"--nvidia-cdi-hook-path={PurePosixPath(root, path.removeprefix('/'))}",)


def _find_cause(complaint: str) -> str:
    """The last error of its log, or else the end of what it wrote."""
    errors = _MESSAGE.findall(complaint)
    text = errors[-1] if errors else " ".join(complaint.split())
    return str(text)[-300:] or "nothing"
