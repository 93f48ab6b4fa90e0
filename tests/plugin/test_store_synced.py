"""What has to be on disk before anybody relies on it: file and folder synced, and in that order (invariant 5)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
from tesela.core.model import ClaimRef
from tesela.core.record import ClaimRecord, ClaimState
from tesela.core.roster import EMPTY_ROSTER
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore


@dataclass(frozen=True)
class Sync:
    """One fsync: what was synced, and what stood in the record's folder by then, each name with its inode."""

    inode: int
    entries: dict[str, int]


class Disk:
    """An fsync that writes down what it was called for, and looks at `folder` meanwhile."""

    def __init__(self, folder):
        self.folder = folder
        self.syncs = []

    def fsync(self, descriptor):
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        entries = {path.name: path.stat().st_ino for path in paths}
        self.syncs.append(Sync(os.fstat(descriptor).st_ino, entries))

    def holds(self, path):
        """Whether the file at `path` would be there after a power cut, and with its bytes.

        Its own inode was synced, and after that its folder, at a moment when the name stood for that inode.
        """
        inode = path.stat().st_ino
        written = next((n for n, one in enumerate(self.syncs) if one.inode == inode), len(self.syncs))
        return any(self._named(one, path, inode) for one in self.syncs[written + 1 :])

    def _named(self, sync, path, inode):
        return sync.inode == path.parent.stat().st_ino and sync.entries.get(path.name) == inode

    def lacks(self, path):
        """Whether the removal of `path` would outlive a power cut."""
        last = [one for one in self.syncs if one.inode == path.parent.stat().st_ino]
        return bool(last) and path.name not in last[-1].entries


@pytest.fixture
def disk(build):
    """A world whose records are written through a disk that is watched."""
    found = []

    def watch(ports):
        state_dir = ports.records.path("x").parent.parent
        found.append(Disk(state_dir / "claims"))
        return replace(ports, records=RecordStore(state_dir, fsync=found[-1].fsync))

    world = build("a100-40gb:mig,h100-80gb", wrap=watch)
    return world, found[-1]


@pytest.mark.parametrize("device", ["partition", "whole"])
def test_an_answer_to_prepare_comes_after_its_record_is_on_disk(disk, device):
    world, watched = disk
    ref = world.claim("a", world.partition(0, "1g.5gb", 6) if device == "partition" else "gpu-1")

    world.serve(ref)

    assert watched.holds(world.record_path(ref))


def test_an_answer_to_unprepare_comes_after_the_removal_is_on_disk(disk):
    world, watched = disk
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)

    world.unprepare(ref)

    assert watched.lacks(world.record_path(ref))


def test_the_roster_is_on_disk_when_it_is_written(tmp_path):
    watched = Disk(tmp_path)
    store = RosterStore(tmp_path, fsync=watched.fsync)

    store.write_roster(EMPTY_ROSTER)

    assert watched.holds(store.path)


def test_a_new_folder_is_on_disk_before_what_lies_in_it_is_relied_on(tmp_path):
    watched = Disk(tmp_path / "state")
    (tmp_path / "state").mkdir()
    store = RecordStore(tmp_path / "state", fsync=watched.fsync)

    store.write(ClaimRecord(claim=ClaimRef(namespace="n", name="a", uid="u"), state=ClaimState.PREPARED, devices=()))

    state = (tmp_path / "state").stat().st_ino
    assert any(one.inode == state and "claims" in one.entries for one in watched.syncs)
