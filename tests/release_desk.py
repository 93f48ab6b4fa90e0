"""A `GpuRelease` by itself: NVML of simulated GPUs, the files, a node in an embedded cluster, a part that pauses."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from polling import until
from tesela.core.errors import NvmlError, NvmlReleased, NvmlTimeout
from tesela.core.released import RELEASE_LABEL, Released, Request, Source
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.kube.port import NODES
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.released import OpenMark, ReleasedStore
from tesela.plugin.release_gpu import GpuRelease, ReleaseFiles, ReleaseTimes, open_unless_released

NODE = "node-1"
TIMES = ReleaseTimes(turn_s=0.01, label_s=0.01, pause_s=0.2, claims_s=0.2, retry_s=0.01)
LIMIT_S = 0.4
ASKED = Released(requests=(Request(source=Source.COMMAND, reason="driver 590", requested_by="alex", since_s=1),))


class FakePart:
    """A part that calls NVML; while it is `stuck` it does not pause. `paused` is whether it does now."""

    def __init__(self) -> None:
        self.stuck = self.paused = False

    def pause(self, timeout_s: float) -> bool:
        self.paused = not self.stuck
        return self.paused

    def resume(self) -> None:
        self.paused = False


class HeardNvml(SimulatedNvml):
    """NVML of simulated GPUs. `before_init` hears of each nvmlInit before it is made."""

    before_init: Callable[[], None] = staticmethod(lambda: None)

    def init(self) -> None:
        self.before_init()
        super().init()


class Desk:
    """Who asks, and what comes of it. `told` are the reasons to publish anew, `failures` what ended the process."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.machine = build_machine("a100-40gb:mig*2")
        self.inner = HeardNvml(self.machine)
        self.nvml = WatchedNvml(self.inner, timeout_s=LIMIT_S)
        self.kube = EmbeddedCluster()
        self.kube.create(NODES, {"metadata": {"name": NODE}})
        self.store = ReleasedStore(state_dir)
        self.locks = FileLocks(state_dir)
        self.mark = OpenMark(self.locks.folder)
        self.disk_is_full = self.has_met_the_full_disk = False
        self.files = ReleaseFiles(ReleasedStore(state_dir, fsync=self._sync), self.locks, self.kube, NODE)
        self._people = ReleaseFiles(self.store, self.locks, self.kube, NODE)
        self.part = FakePart()
        self.opened = 0
        self.after_open_fails = False
        self.told: list[str] = []
        self.failures: list[str] = []

    def build(self, **more: object) -> GpuRelease:
        """A release that nobody has started."""
        release = GpuRelease(
            self.nvml,
            self.files,
            on_change=self.told.append,
            on_failure=lambda error: self.failures.append(str(error)),
            times=TIMES,
            **more,  # type: ignore[arg-type]
        )
        release.attach({"a look": self.part}, self._count)
        return release

    def begin(self) -> bool:
        """What a process begins with: whether it opened NVML."""
        self.files.follow_label()
        open_unless_released(self.nvml, self.files)
        return self.nvml.is_open

    def _sync(self, descriptor: int) -> None:
        if self.disk_is_full:
            self.has_met_the_full_disk = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)

    def _count(self) -> None:
        if self.after_open_fails:
            raise NvmlTimeout("a GPU does not answer")
        self.opened += 1

    def ask(self, reason: str = "driver 590", source: Source = Source.COMMAND) -> None:
        asked = Request(source=source, reason=reason, requested_by="alex", since_s=1)
        self._people.change(lambda released: released.with_request(asked))

    def withdraw(self) -> None:
        self._people.change(lambda released: released.without(Source.COMMAND))

    def label(self, value: str | None) -> None:
        """What `kubectl label node` does."""
        node = self.kube.get(NODES, NODE)
        node["metadata"]["labels"] = {} if value is None else {RELEASE_LABEL: value}
        self.kube.replace(NODES, node)

    def said(self) -> Released:
        """The file."""
        return ReleasedStore(self.state_dir).read()

    @property
    def is_closed(self) -> bool:
        """Whether NVML itself is closed, whatever the files say."""
        try:
            self.inner.get_device_count()
        except NvmlError as error:
            return error.code == codes.UNINITIALIZED
        return False

    def closes(self) -> bool:
        return until(lambda: self.is_closed and self.said().closed_by)

    def opens(self) -> bool:
        return until(lambda: not self.is_closed and not self.store.path.exists())

    def notes(self, text: str) -> bool:
        """Whether the file comes to name this problem."""
        return until(lambda: text in self.said().problem)


def turns_away(release: GpuRelease) -> bool:
    """Whether claims are told that NVML is released."""
    try:
        with release.work():
            return False
    except NvmlReleased:
        return True


@contextmanager
def running(desk: Desk, *, begin_open: bool = True, **more: object) -> Iterator[GpuRelease]:
    """The release of a process whose NVML is open, unless `begin_open` is false."""
    if begin_open:
        desk.nvml.init()
    release = desk.build(**more)
    release.start()
    try:
        yield release
    finally:
        desk.machine.release()
        assert release.stop(10)
        release.close()
        desk.kube.close()
