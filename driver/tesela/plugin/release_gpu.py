"""Close NVML while an operator works on the GPU driver or a GPU, and open it again, with the registration kept.

`released.json` says what is wanted (`tesela release-gpu`, and the node's label by way of this file); a turn every half
second makes it so: new claims are turned away, those under way end, every part that calls NVML pauses, NVML closes.
What does not end in time is tried again, and the file says what it waits for. Opening it again is the reverse. A
library that does not match the kernel module any more, or is another file now, is beyond repair within this process:
that ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tesela.core.errors import (
    ApiError,
    NvmlError,
    NvmlReleased,
    OtherRelease,
    StartError,
    StateError,
    TryAgain,
)
from tesela.core.released import (
    NOT_RELEASED,
    RELEASE_LABEL,
    Released,
    Request,
    Source,
    render_sentence,
)
from tesela.edge.kube.port import NODES, Kube
from tesela.edge.nvml import codes
from tesela.edge.nvml.library_file import LibraryFile
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.released import OpenMark, ReleasedStore
from tesela.plugin.loop import Loop, LoopPart

log = logging.getLogger(__name__)

_LOCK_TIMEOUT_S: Final = 10.0
_NEW_PROCESS: Final = "this process ends, and the one that takes its place loads the library anew"


class Pausable(Protocol):
    """A part that calls NVML by itself."""

    def pause(self, timeout_s: float) -> bool:
        """Call NVML no more until `resume`. False: it is still inside after `timeout_s`."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTimes:
    """In seconds: how often the file and the node's label are looked at, and how long one try waits for each part."""

    turn_s: float = 0.5
    label_s: float = 30.0
    pause_s: float = 10.0
    claims_s: float = 50.0
    retry_s: float = 2.0


class ReleaseFiles:
    """`released.json` under its lock, the label of the node that goes into it, and this process's own mark."""

    def __init__(self, store: ReleasedStore, locks: FileLocks, kube: Kube, node_name: str) -> None:
        self._store = store
        self._locks = locks
        self._kube = kube
        self.mark = OpenMark(locks.folder)
        self.node_name = node_name
        self._last = NOT_RELEASED
        self._label_unknown = False
        self._tell_set_aside: Callable[[str], None] | None = None
        self._untold: list[str] = []

    def listen(self, tell: Callable[[str], None]) -> None:
        """`tell` hears of every file that was or is set aside, in a sentence; it must not block."""
        self._tell_set_aside, untold, self._untold = tell, self._untold, []
        for sentence in untold:
            tell(sentence)

    def read(self) -> Released:
        """What the file says. One of another release asks for the same; one that is damaged says what it said last.

        Such a one is set aside, and a process that only begins takes it for no request. TryAgain or StateError: that
        cannot be done now.
        """
        try:
            self._last = self._read()
        except StateError:
            # Under the lock, and read again there: the command may be mending the file, and what it asks for is kept.
            with hold(self._locks.released_lock(), _LOCK_TIMEOUT_S, "the request to release NVML"):
                self._last = self._read_or_mend()
        return self._last

    def _read(self) -> Released:
        try:
            return self._store.read()
        except OtherRelease as error:
            foreign = Request(source=Source.COMMAND, reason=str(error), requested_by="another release", since_s=0)
            return Released(requests=(foreign,))

    def _read_or_mend(self) -> Released:
        try:
            return self._read()
        except StateError as error:
            sentence = f"{self._store.path}: {error}; it is kept as {self._store.set_aside()}"
            log.error("%s", sentence)  # noqa: TRY400 - the sentence is enough
            (self._tell_set_aside or self._untold.append)(sentence)
            self._store.write(self._last)
            return self._last

    def change(self, edit: Callable[[Released], Released]) -> Released:
        """Writes what `edit` makes of the file, where that differs. TryAgain or StateError: it cannot be written."""
        with hold(self._locks.released_lock(), _LOCK_TIMEOUT_S, "the request to release NVML"):
            self._last = before = self._read_or_mend()
            after = edit(before)
            if after != before:
                self._store.write(after)
                self._last = after
        return after

    def acknowledge(self) -> None:
        """Writes that this process has NVML closed."""
        closed_by, closed_s = f"process {os.getpid()} on {os.uname().nodename}", int(time.time())
        self.change(lambda now: replace(now, closed_by=closed_by, closed_s=closed_s, problem=""))

    def follow_label(self) -> None:
        """Puts the node's label into the file, or takes it out; neither where the API server does not tell."""
        try:
            labels = self._kube.get(NODES, self.node_name)["metadata"].get("labels") or {}
        except ApiError as error:
            # The file is followed all the same, and a server that is away is the publisher's to tell of.
            if not self._label_unknown:
                log.warning("whether the node's label asks for NVML to be released is not known: %s", error)
            self._label_unknown = True
            return
        self._label_unknown = False
        if labels.get(RELEASE_LABEL) == "true":
            reason = f"label {RELEASE_LABEL} of the node"
            asked = Request(
                source=Source.LABEL, reason=reason, requested_by="an administrator", since_s=int(time.time())
            )
            self.change(lambda released: released.with_request(asked))
        elif self.read().has(Source.LABEL):
            self.change(lambda released: released.without(Source.LABEL))


def open_unless_released(nvml: WatchedNvml, files: ReleaseFiles) -> None:
    """One try at the start of a process. Where NVML is released it stays closed, and `nvml` knows why.

    Errors as nvmlInit; TryAgain or StateError: what the file says cannot be known now.
    """
    files.mark.hold()  # before the file is read: who writes it looks at the mark afterwards
    try:
        released = files.read()
        if not released.is_wanted:
            nvml.reopen()  # not `init`: a try before this one may have begun to release it
            return
        sentence = render_sentence(released, files.node_name)
        nvml.release(sentence)  # one before this one may have opened it too late
    finally:
        if not nvml.may_be_open:
            files.mark.drop()
    with contextlib.suppress(TryAgain):  # a full disk: the release goes on with it
        files.acknowledge()
    log.warning("%s; this process begins without NVML", sentence)


def _render_mismatch(error: NvmlError) -> str:
    return f"libnvidia-ml.so.1 does not match the loaded kernel module any more ({error}): {_NEW_PROCESS}"


def _drop_what_is_over(released: Released) -> Released:
    return released if released.is_wanted else NOT_RELEASED


class GpuRelease(LoopPart):
    """Does what the files want. `after_open` is called whenever NVML was opened again, before the parts go on.

    `on_change` is told, and must not block, when the taints are to be written anew; `on_failure` when this process has
    to end. `parts` are paused in reverse order and go on in order. `released` is what was asked for last, from then on
    until NVML is open again: what is published of it.
    """

    def __init__(
        self,
        nvml: WatchedNvml,
        files: ReleaseFiles,
        *,
        on_change: Callable[[str], None],
        on_failure: Callable[[Exception], None],
        library: LibraryFile | None = None,
        times: ReleaseTimes = ReleaseTimes(),
    ) -> None:
        self._nvml = nvml
        self._files = files
        self._on_change = on_change
        self._on_failure = on_failure
        self._library = library
        self._times = times
        self._parts: dict[str, Pausable] = {}
        self._after_open: Callable[[], None] = lambda: None
        self._label_due_s = 0.0
        self._failed = False
        self._idle = threading.Condition()
        self._working = 0
        self._sentence = self._problem = ""
        self.released = NOT_RELEASED
        if not nvml.is_open:
            self.released = files.read()
            self._sentence = render_sentence(self.released, files.node_name)
        self._loop = Loop("release-gpu", self._turn)

    def attach(self, parts: Mapping[str, Pausable], after_open: Callable[[], None]) -> None:
        """Say who is to pause, and what comes first when NVML is open again. Once, before any part starts.

        `parts` are by what they do inside NVML, in the words of people.
        """
        self._parts, self._after_open = dict(parts), after_open
        if not self._nvml.is_open:
            for part in reversed(self._parts.values()):
                part.pause(0)

    def start(self) -> None:
        """Begin to follow the files."""
        if self._nvml.is_open:
            self._files.mark.hold()
            if self._library is not None:
                self._library.note()
        self._nvml.listen_for_mismatch(lambda error: self._fail(_render_mismatch(error)))
        super().start()

    def close(self) -> None:
        """NVML was shut down for good: this process has it open no longer."""
        self._files.mark.drop()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Around whatever a claim needs NVML for. NvmlReleased: not now. A release waits for the end of the block."""
        with self._idle:
            if self._sentence:
                raise NvmlReleased(self._sentence)
            self._working += 1
        try:
            yield
        finally:
            with self._idle:
                self._working -= 1
                self._idle.notify_all()

    def _turn(self) -> float:
        if time.monotonic() >= self._label_due_s:
            self._label_due_s = time.monotonic() + self._times.label_s
            self._files.follow_label()
        asked = self._files.read()
        if asked.is_wanted:
            self.released = asked
            if self._nvml.may_be_open or not self._sentence:
                return self._close()
            if not asked.closed_by:  # it could not be written then, or its request is another one by now
                self._files.acknowledge()
        elif self._sentence:
            return self._open()
        elif asked != NOT_RELEASED:
            self._files.change(_drop_what_is_over)  # as it could not be then
        if self._library is not None and not self._sentence and (changed := self._library.describe_change()):
            self._fail(f"{changed}, by an upgrade of the GPU driver, it seems: {_NEW_PROCESS}")
        return self._times.turn_s

    def _close(self) -> float:
        """One try; what is in its way is written down, and the next turn tries again."""
        began = not self._sentence
        with self._idle:
            self._sentence = render_sentence(self.released, self._files.node_name)
        if began:
            log.warning("%s", self._sentence)
            self._on_change("NVML is released")
        problem = self._find_obstacle()
        if problem:
            self._note(problem)
            return self._times.retry_s
        self._files.mark.drop()
        self._files.acknowledge()
        log.warning("NVML is closed; no claim is prepared or given back until it is open again")
        return self._times.turn_s

    def _find_obstacle(self) -> str:
        """What keeps NVML open; "" once it is closed."""
        with self._idle:
            self._idle.wait_for(lambda: not self._working or self._loop.must_end, self._times.claims_s)
            if self._working:
                return f"{self._working} calls of the kubelet are still under way"
        for doing, part in reversed(self._parts.items()):
            if not part.pause(self._times.pause_s):
                return f"{doing} is still inside NVML"
        try:
            self._nvml.release(self._sentence)
        except (NvmlError, TryAgain) as error:
            return str(error)
        return ""

    def _open(self) -> float:
        library = self._library
        # Twice, as it takes two looks: who resumes is through with installing.
        if library is not None and (library.describe_change() or library.describe_change()):
            self._leave(f"NVML is to be open again, and its library was replaced meanwhile: {_NEW_PROCESS}")
            return self._times.turn_s
        try:
            self._files.mark.hold()
            self._nvml.reopen()
        except (NvmlError, TryAgain) as error:
            if not self._nvml.may_be_open:  # one that did not return in time may open it yet
                self._files.mark.drop()
            if isinstance(error, NvmlError) and error.code == codes.LIB_RM_VERSION_MISMATCH:
                self._leave(_render_mismatch(error))
            else:
                self._note(f"NVML cannot be opened again yet: {error}")
            return self._times.retry_s
        if self._library is not None:
            self._library.note()
        try:
            self._after_open()
        except (NvmlError, TryAgain) as error:
            self._note(f"NVML is open again, and cannot be used yet: {error}")
            return self._times.retry_s
        log.warning("NVML is open again")
        with self._idle:
            self._sentence = ""
        self.released = NOT_RELEASED
        for part in self._parts.values():
            part.resume()
        self._on_change("NVML is open again")
        self._files.change(_drop_what_is_over)
        return 0.0

    def _note(self, problem: str) -> None:
        if self._problem != problem:
            log.warning("NVML and the release of it: %s; tried again", problem)
        self._problem = problem
        self._say(problem)

    def _say(self, problem: str) -> None:
        """For whoever waits at a terminal; the log has it already."""
        with contextlib.suppress(TryAgain, StateError):
            self._files.change(lambda now: replace(now, problem=problem))

    def _leave(self, sentence: str) -> None:
        """Ends; the file stays for the next process, which removes it once it has NVML open."""
        self._say(sentence)
        self._fail(sentence)

    def _fail(self, sentence: str) -> None:
        with self._idle:  # calls on several GPUs may meet the mismatch at once
            is_first, self._failed = not self._failed, True
        if is_first:
            log.error("%s", sentence)
            self._on_failure(StartError(sentence))
