"""Knows what containers get of the host's GPU driver: found in the background, once per version of the driver.

Found at start, after NVML was open again, and when a file of it is another one. Who prepares a claim waits for that,
for a bounded time, and looks at most once a second whether the files are still the same. With `auto` a node where
nothing is found serves claims all the same, with device nodes alone: images that bring the driver's libraries, and
programs that need none, work; the log and a metric say so. Who asked for one source gets that or no claim.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tesela.core.driver_files import (
    DriverEdits,
    DriverFiles,
    LibraryMode,
    LibrarySource,
    find_gap,
    keep_existing,
    render_digest,
    render_driver_edits,
)
from tesela.core.errors import StateError, TeselaError, TryAgain
from tesela.edge.host.driver_files import DriverTree
from tesela.edge.host.toolkit import Toolkit
from tesela.edge.store.driver_files import DriverFilesStore
from tesela.plugin.deadline import Deadline
from tesela.plugin.loop import Loop, PausablePart, plan_pause_s

log = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
PATIENCE_S: Final = 20.0
_LONGEST_RETRY_S: Final = 3600.0
_VERSION_WAIT_S: Final = 2.0
_FRESH_S: Final = 1.0
_CHANGING_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Given:
    """What one container gets now, as a CDI document has it, and the digest of what it was taken from."""

    edits: Mapping[str, Any]
    digest: str


@dataclass(frozen=True, slots=True)
class _Found:
    """What every prepare asks for, worked out once: `passing` are the mounts that come and go with a service."""

    files: DriverFiles
    digest: str
    body: Mapping[str, Any]
    passing: DriverEdits

    @classmethod
    def of(cls, files: DriverFiles) -> _Found:
        passing = tuple(mount for mount in files.edits.mounts if mount.is_passing)
        return cls(files, render_digest(files), render_driver_edits(files.edits), DriverEdits(mounts=passing))


class DriverFilesKeeper(PausablePart):
    """A part of the node program. `driver_version` is the GPU driver's, as NVML said it last; "" before that.

    It is pausable because NVIDIA's toolkit is a client of NVML.
    """

    def __init__(
        self,
        tree: DriverTree,
        toolkit: Toolkit,
        store: DriverFilesStore,
        *,
        mode: LibraryMode,
        driver_version: Callable[[], str],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._tree = tree
        self._toolkit = toolkit
        self._store = store
        self._mode = mode
        self._driver_version = driver_version
        self._patience_s = patience_s
        self._looked = threading.Condition()
        self._looks = 0
        self._found: _Found | None = None
        self._fresh_until_s = 0.0
        self._failures = 0
        self._said = ""
        self._loop = Loop("driver-files", self._turn)

    @property
    def files(self) -> DriverFiles | None:
        """What was found last; None before the first look."""
        return self._found.files if self._found is not None else None

    @property
    def digest(self) -> str | None:
        """Of what was found last; None before the first look."""
        return self._found.digest if self._found is not None else None

    def get(self, deadline: Deadline | None = None) -> Given:
        """What a container gets now. Waits while it is being found, not beyond `deadline` and 20 seconds.

        TryAgain: it is not found in time, or cannot be had in the one way that was asked for.
        """
        found = self._find(deadline)
        files = found.files
        if files.source is LibrarySource.NONE and self._mode is not LibraryMode.AUTO:
            raise TryAgain(
                f"the GPU driver's libraries cannot be given to containers as --driver-libraries={self._mode} asks: "
                f"{files.problem}; mend that, or let the driver run with --driver-libraries=auto; it looks again and "
                "the kubelet tries again, both by themselves"
            )
        missing = self._tree.find_missing(found.passing)
        return Given(render_driver_edits(files.edits, missing) if missing else found.body, found.digest)

    def wait(self, deadline: Deadline) -> None:
        """Return when `get` will not have to wait; whoever is about to lock a GPU waits before that. Never raises."""
        try:
            self._find(deadline)
        except TryAgain:
            return  # `get` says it

    def _find(self, deadline: Deadline | None) -> _Found:
        found = self._found
        if found is not None and self._is_current(found.files):
            return found
        patience_s = self._patience_s if deadline is None else min(self._patience_s, deadline.left_s)
        until_s = time.monotonic() + patience_s
        with self._looked:
            while (left_s := until_s - time.monotonic()) > 0 and not self._loop.must_end:
                # A look under way may have begun before the files changed; then the next one counts.
                asked = self._looks
                self._loop.wake()
                self._looked.wait_for(lambda before=asked: self._looks > before, left_s)  # type: ignore[misc]
                if self._found is not None and self._is_current(self._found.files):
                    return self._found
                self._looked.wait(min(_CHANGING_S, max(until_s - time.monotonic(), 0)))
        raise TryAgain(
            "the GPU driver's libraries, which containers need, are still being looked for or just being replaced: see "
            "the driver's log, the kubelet tries again by itself"
        )

    def _is_current(self, files: DriverFiles) -> bool:
        if files.driver_version != self._driver_version():
            return False
        now_s = time.monotonic()
        if now_s < self._fresh_until_s:
            return True
        if self._tree.find_change(files.identities):
            return False
        self._fresh_until_s = now_s + _FRESH_S
        return True

    def _turn(self) -> float:
        """One look; the pause until the next. What is as it was costs a look at some dozen files."""
        version = self._driver_version()
        if not version:
            return _VERSION_WAIT_S
        files = self._look(version)
        with self._looked:
            self._found = _Found.of(files)
            self._looks += 1
            self._fresh_until_s = time.monotonic() + _FRESH_S
            self._looked.notify_all()
        self._say(self._found)
        # A toolkit that fails is asked less and less often: each try may leave a process that hangs in the kernel.
        self._failures = self._failures + 1 if files.problem and self._tree.find_toolkit() is not None else 0
        return plan_pause_s(max(self._failures, 1), PERIOD_S, _LONGEST_RETRY_S)

    def _look(self, version: str) -> DriverFiles:
        key = self._tree.render_key(version, wanted=self._mode)
        known = self.files or self._store.read()
        if known is not None and known.key == key and not known.problem:
            change = self._tree.find_change(known.identities)
            if not change:
                return known
            log.info("%s is another file than it was: what containers get of the driver is found anew", change)
        made = self._make(version, key)
        if not made.problem:
            try:
                self._store.write(made)
            except TeselaError as error:
                log.warning("what was found of the driver's files is not kept for the next start: %s", error)
        return made

    def _make(self, version: str, key: str) -> DriverFiles:
        problems: list[str] = []
        for source, find in self._list_sources(version):
            try:
                edits = find()
                identities = self._tree.identify(edits)
            except (TryAgain, StateError) as error:
                problems.append(str(error))
                continue
            return DriverFiles(
                key=key,
                driver_version=version,
                source=source,
                edits=edits,
                identities=identities,
                problem="; ".join(problems),
            )
        return DriverFiles(key=key, driver_version=version, source=LibrarySource.NONE, problem="; ".join(problems))

    def _list_sources(self, version: str) -> Iterator[tuple[LibrarySource, Callable[[], DriverEdits]]]:
        has_toolkit = self._mode is LibraryMode.AUTO and self._tree.find_toolkit() is not None
        if has_toolkit or self._mode is LibraryMode.TOOLKIT:
            yield LibrarySource.TOOLKIT, lambda: self._ask_toolkit(version)
        if self._mode in {LibraryMode.AUTO, LibraryMode.MOUNT}:
            yield LibrarySource.MOUNT, lambda: self._tree.find_library_edits(version)

    def _ask_toolkit(self, version: str) -> DriverEdits:
        edits = keep_existing(self._toolkit.generate(), self._tree.exists)
        gap = find_gap(edits, version)
        if gap:
            raise StateError(f"what `nvidia-ctk cdi generate` describes is not enough: {gap}")
        return edits

    def _say(self, found: _Found) -> None:
        """Each outcome once."""
        files = found.files
        said = f"{files.source} {found.digest} {files.problem}"
        if said == self._said:
            return
        self._said = said
        if files.source is LibrarySource.NONE:
            log.warning(
                "containers get no libraries of GPU driver %s from here, only device nodes: %s. Images that need them "
                "have to bring them; see --driver-root, --driver-root-mount and --driver-libraries",
                files.driver_version,
                files.problem,
            )
            return
        log.info(
            "containers get the libraries of GPU driver %s by %s: %d mounts, %d hooks",
            files.driver_version,
            files.source,
            len(files.edits.mounts),
            len(files.edits.hooks),
        )
        if files.problem:
            log.warning("the container toolkit was not used: %s; it is asked again", files.problem)
