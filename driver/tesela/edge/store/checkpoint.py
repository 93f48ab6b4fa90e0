"""`checkpoint.json` of NVIDIA's driver, which keeps it where our own state lies, and what we wrote down about it.

We only read it and, when all of it is in records of ours, rename it: never change or remove a byte of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from tesela.core.adoption import AdoptionReport
from tesela.core.checkpoint import Checkpoint
from tesela.core.errors import StateError, TryAgain
from tesela.edge.documents.adoption import decode_report, encode_report
from tesela.edge.documents.checkpoint import decode_checkpoint
from tesela.edge.store.files import Fsync, explain, read_file, sync_folder, write_file
from tesela.edge.store.flock import try_flock

_CHECKPOINT: Final = "checkpoint.json"
_THEIR_LOCKS: Final = ("pu.lock", "cp.lock")
"""Held by NVIDIA's driver during a prepare or unprepare, and while it writes its checkpoint."""

_AT_WORK: Final = "NVIDIA's driver is at work on this node; stop it first"


class CheckpointFile:
    """NVIDIA's checkpoint under `state_dir`, and `adoption.json`, our report about the last one."""

    def __init__(self, state_dir: Path, *, fsync: Fsync = os.fsync) -> None:
        self._folder = state_dir
        self._fsync = fsync

    @property
    def path(self) -> Path:
        """Where NVIDIA's driver keeps it."""
        return self._folder / _CHECKPOINT

    @property
    def socket(self) -> Path:
        """Where NVIDIA's driver serves the kubelet."""
        return self._folder / "dra.sock"

    @property
    def report_path(self) -> Path:
        """The file of the report."""
        return self._folder / "adoption.json"

    def read(self) -> Checkpoint | None:
        """What is in it, None without one. StateError where it is damaged, TryAgain where the disk does not answer."""
        data = read_file(self.path)
        if data is None:
            return None
        try:
            return decode_checkpoint(data)
        except StateError as error:
            raise StateError(f"{self.path}: {error}") from error

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep NVIDIA's driver from preparing and from writing meanwhile, and another start of ours from adopting.

        TryAgain where one of them is at that now. Two starts of ours may overlap, and the one that looks at a claim
        last, which the other one's kubelet has ended by then, would hold it for good.
        """
        with contextlib.ExitStack() as stack:
            for name in (*_THEIR_LOCKS, _CHECKPOINT):
                path = self._folder / name
                try:
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # nor wait for a pipe
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise explain(error, f"cannot open {path}") from error
                stack.callback(os.close, descriptor)
                if not try_flock(descriptor, fcntl.LOCK_EX):
                    holder = "another start of this driver adopts it" if name == _CHECKPOINT else _AT_WORK
                    raise TryAgain(f"{path} is held: {holder}")
            yield

    def set_aside(self, why: Literal["adopted", "before-boot"]) -> Path | None:
        """Renames it to `nvidia-checkpoint.<why>.<n>.json`, on disk when this returns; None where it has gone."""
        try:
            taken = {entry.name for entry in self._folder.iterdir()}
            names = (f"nvidia-checkpoint.{why}.{number}.json" for number in range(1, len(taken) + 2))
            target = self._folder / next(name for name in names if name not in taken)
            try:
                self.path.rename(target)
            except FileNotFoundError:
                return None
            sync_folder(self._folder, self._fsync)
        except OSError as error:
            raise explain(error, f"cannot set {self.path} aside") from error
        return target

    def write_report(self, report: AdoptionReport) -> None:
        """Puts the report in place. TryAgain or StateError leave the old one as it was."""
        write_file(self.report_path, encode_report(report), mode=0o644, synced=False)

    def read_report(self) -> AdoptionReport | None:
        """The last report, None where nothing was ever adopted. StateError where it is damaged, naming it."""
        data = read_file(self.report_path)
        if data is None:
            return None
        try:
            return decode_report(data)
        except StateError as error:
            raise StateError(f"{self.report_path}: {error}; it is for people alone and may be removed") from error
