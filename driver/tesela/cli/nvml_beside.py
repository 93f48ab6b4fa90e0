"""NVML as a command opens it for itself, beside the driver: only while nobody asks for it to be closed.

What the commands ask of it may not go here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tesela.core.errors import NvmlReleased, StateError, TeselaError
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.released import OpenMark, ReleasedStore


@contextlib.contextmanager
def open_beside(state_dir: Path, nvml: WatchedNvml) -> Iterator[None]:
    """Has `nvml` open for a block. NvmlReleased: it may not be opened now. Errors as nvmlInit.

    One that cannot be closed again has its mark until the command ends, which is soon. TryAgain or StateError: it
    cannot be said that it is open.
    """
    store, folder = ReleasedStore(state_dir), FileLocks(state_dir).folder
    mark = OpenMark(folder)
    if folder.is_dir():  # else no driver of ours ever ran here, and the folder above may be another driver's
        mark.hold()  # before the file is read: who writes it looks at the mark afterwards
    try:
        if _is_wanted(store):
            raise NvmlReleased(f"NVML is released for maintenance ({store.path}), so it was not opened")
        nvml.init()
        try:
            yield
        finally:
            with contextlib.suppress(TeselaError):  # a call that hangs keeps it open
                nvml.shutdown()
    finally:
        if not nvml.may_be_open:
            mark.drop()


def _is_wanted(store: ReleasedStore) -> bool:
    """A file without a request stands until a driver has NVML open again; one that cannot be read may hold one."""
    try:
        return store.read().is_wanted
    except StateError:
        return True
