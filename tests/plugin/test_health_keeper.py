"""What the keeper puts on disk, when, and what it makes of a file that others changed, damaged or could not store."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace

import pytest
from gpu_models import a100, gpu_uuid, known, roster
from polling import until
from tesela.core.health.model import ALL_HEALTHY, HealthState
from tesela.core.health.observations import GpuAnswers, GpuLost, Reading, Wedged, XidSeen
from tesela.core.health.rules import plan_clear
from tesela.core.health.signals import DEFAULT_HEALTH_POLICY
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLocks, hold
from tesela.plugin.health.keeper import HealthKeeper

ONE, TWO = gpu_uuid(0), gpu_uuid(1)
FATAL, HARMLESS = XidSeen(gpu_uuid=ONE, xid=48), XidSeen(gpu_uuid=TWO, xid=31)
DAMAGED = [b"", b"{", b"\x00\xff\x13noise"]
NEWER = b'{"version": 99, "health": {}}'


class Disk:
    """`fsync` of a disk that counts what is written, and is full while `full`."""

    def __init__(self):
        self.writes, self.full = 0, False

    def fsync(self, descriptor):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes += 1


class Kept:
    """A keeper over real files. `other` is another process's, over the same files."""

    def __init__(self, folder):
        self.folder, self.disk, self.now_s = folder, Disk(), 1000.0
        self.roster, self.wedged = roster(a100(0), a100(1)), Wedged()
        self.told = []
        self.keeper = self.other()
        self.keeper.listen(self.told.append)

    def other(self):
        return HealthKeeper(
            store=HealthStore(self.folder, fsync=self.disk.fsync),
            lock=FileLocks(self.folder).health_lock,
            policy=DEFAULT_HEALTH_POLICY,
            roster=lambda: self.roster,
            wedged=lambda: self.wedged,
            clock=lambda: self.now_s,
        )

    @property
    def path(self):
        return HealthStore(self.folder).path

    def on_disk(self):
        return {one.signal: one.count for one in HealthStore(self.folder).read_health().findings}


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path)


# What is written


def test_a_fault_is_on_disk_before_anybody_hears_of_it(kept):
    seen = []
    kept.keeper.listen(lambda _changes: seen.append(kept.on_disk()))

    kept.keeper.observe(FATAL)

    assert seen == [{"xid-48": 1}]


def test_a_new_process_knows_the_faults_of_the_old_one(kept):
    kept.keeper.observe(FATAL)
    after = kept.other()

    after.observe()

    assert after.health == kept.keeper.health != ALL_HEALTHY


def test_the_first_look_of_a_new_process_takes_back_what_it_reads_clear(kept):
    kept.keeper.observe(GpuLost(gpu_uuid=ONE))
    new = kept.other()

    new.observe(GpuAnswers(gpu_uuid=ONE), since=new.health)

    assert kept.on_disk() == {}


def test_a_fault_that_is_seen_again_is_written_at_most_every_ten_seconds(kept):
    kept.keeper.observe(FATAL)
    before = kept.disk.writes

    for _ in range(100):
        kept.now_s += 0.1
        kept.keeper.observe(replace(FATAL, count=100))

    # Ten seconds: one write of a file and its folder.
    assert kept.disk.writes - before <= 2 * 2


def test_how_often_a_fault_was_seen_comes_onto_disk(kept):
    kept.keeper.observe(FATAL)
    kept.keeper.observe(replace(FATAL, count=999))

    kept.now_s += 10
    kept.keeper.observe()

    assert kept.on_disk() == {"xid-48": 1000}


def test_healthy_readings_write_nothing(kept):
    for _ in range(100):
        kept.now_s += 10
        kept.keeper.observe(GpuAnswers(gpu_uuid=ONE), Reading(gpu_uuid=ONE, ecc_uncorrected_volatile=0))

    assert (kept.disk.writes, kept.path.exists()) == (0, False)


def test_what_was_seen_again_tells_nobody(kept):
    kept.keeper.observe(FATAL)

    kept.keeper.observe(FATAL)

    assert len(kept.told) == 1


def test_what_was_counted_is_written_at_the_end(kept):
    kept.keeper.observe(FATAL)
    kept.keeper.observe(FATAL)

    assert kept.keeper.stop(10)

    assert kept.on_disk() == {"xid-48": 2}


# What follows


def test_a_fault_is_a_fence(kept):
    kept.keeper.observe(FATAL)

    assert [(one.gpu_uuid, one.key, one.value) for one in kept.keeper.fences()] == [(ONE, "gpu.nvidia.com/xid", "48")]


def test_a_gpu_that_the_roster_misses_is_gone(kept):
    kept.roster = roster(known(a100(0), present=False), a100(1))

    kept.keeper.observe()

    assert kept.keeper.health.state_of(ONE, None) is HealthState.GONE


def test_a_call_that_hangs_fences_its_gpu_until_it_returns(kept):
    kept.wedged = Wedged(gpu_uuids=frozenset({ONE}))
    kept.keeper.observe()
    hanging = [one.key for one in kept.keeper.fences()]

    kept.wedged = Wedged()
    kept.keeper.observe()

    assert (hanging, kept.keeper.fences()) == (["gpu.nvidia.com/wedged"], ())


def test_a_process_beside_one_that_hangs_does_not_call_its_gpu_well(kept):
    """They called it well and hanging by turns, every two seconds."""
    kept.wedged = Wedged(gpu_uuids=frozenset({ONE}))
    kept.keeper.observe()
    kept.wedged = Wedged()

    kept.other().observe()

    assert kept.on_disk() == {"wedged": 1}


def test_a_new_process_calls_a_gpu_well_that_answers(kept):
    kept.wedged = Wedged(gpu_uuids=frozenset({ONE}))
    kept.keeper.observe()
    kept.wedged = Wedged()

    kept.other().observe(GpuAnswers(gpu_uuid=ONE))

    assert kept.on_disk() == {}


def test_what_is_posted_is_taken_soon(kept):
    kept.keeper.start()

    kept.keeper.post(FATAL)

    assert until(lambda: kept.on_disk() == {"xid-48": 1})
    assert kept.keeper.stop(10)


# Others


def clear(kept, signal=None):
    """`tesela health clear`."""
    store = HealthStore(kept.folder)
    with hold(FileLocks(kept.folder).health_lock(), 10, "health"):
        health = plan_clear(store.read_health(), ONE, signal, reason="it was replaced", who="ops", now_s=1000)
        store.write_health(health)


def test_what_a_person_cleared_is_noticed_and_told(kept):
    kept.keeper.observe(FATAL)

    clear(kept)
    kept.keeper.observe()

    assert (kept.keeper.health.findings, kept.told[-1][0].after) == ((), HealthState.HEALTHY)


def test_what_a_person_cleared_stays_cleared_while_a_storm_is_counted(kept):
    kept.keeper.observe(FATAL)
    kept.keeper.observe(replace(FATAL, count=999))

    clear(kept)
    kept.now_s += 10
    kept.keeper.observe()

    assert kept.on_disk() == {}


def test_two_processes_keep_the_faults_of_both(kept):
    other = kept.other()
    kept.keeper.observe(FATAL)

    other.observe(HARMLESS)
    kept.keeper.observe()

    assert kept.keeper.health == other.health
    assert kept.on_disk() == {"xid-48": 1, "xid-31": 1}


# Trouble with the file


def test_a_full_disk_keeps_no_fault_from_being_fenced(kept):
    kept.disk.full = True

    kept.keeper.observe(FATAL)

    assert [one.value for one in kept.keeper.fences()] == ["48"]


def test_a_fault_that_could_not_be_written_is_written_later(kept):
    kept.disk.full = True
    kept.keeper.observe(FATAL)

    kept.disk.full = False
    kept.keeper.observe()

    assert kept.on_disk() == {"xid-48": 1}


def test_a_fault_that_could_not_be_written_is_kept_beside_what_another_process_wrote(kept):
    other = kept.other()
    kept.disk.full = True
    kept.keeper.observe(FATAL)
    kept.disk.full = False
    other.observe(HARMLESS)

    kept.keeper.observe()

    assert kept.on_disk() == {"xid-48": 1, "xid-31": 1}


def test_a_full_disk_is_said_once(kept, caplog):
    kept.disk.full = True
    for _ in range(10):
        kept.keeper.observe(FATAL)

    ours = [record for record in caplog.records if record.name == "tesela.plugin.health.keeper"]
    assert sum(record.levelno == logging.ERROR for record in ours) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\x00\xff\x13noise", b'{"version": 1}', b'{"version": 99, "health": {}}']
)
def test_a_file_that_cannot_be_read_at_the_start_is_set_aside_and_begun_anew(kept, content):
    kept.path.write_bytes(content)

    kept.keeper.observe(FATAL)

    aside = [path.read_bytes() for path in (kept.folder / "aside").iterdir()]
    assert (aside, kept.on_disk()) == ([content], {"xid-48": 1})


@pytest.mark.parametrize("content", [*DAMAGED, NEWER])
def test_a_file_that_is_damaged_while_no_driver_runs_takes_no_fault_along(kept, content):
    """What only an event told is told once."""
    kept.keeper.observe(FATAL)
    kept.path.write_bytes(content)
    next_process = kept.other()

    next_process.observe()
    next_process.observe()

    aside = [path.read_bytes() for path in (kept.folder / "aside").iterdir()]
    assert (aside, kept.on_disk()) == ([content], {"xid-48": 1})


@pytest.mark.parametrize("content", DAMAGED)
def test_a_file_that_is_damaged_under_the_driver_is_written_again_from_what_it_knows(kept, content):
    kept.keeper.observe(FATAL)
    kept.path.write_bytes(content)

    kept.keeper.observe()

    assert kept.on_disk() == {"xid-48": 1}


def test_a_file_that_is_damaged_takes_no_fault_along_that_another_process_found(kept):
    kept.keeper.observe(HARMLESS)
    kept.other().observe(FATAL)
    kept.path.write_bytes(b"{")

    kept.keeper.observe()

    assert kept.on_disk() == {"xid-31": 1, "xid-48": 1}


def test_a_file_that_another_release_writes_beside_this_process_is_left_to_it(kept):
    kept.keeper.observe(FATAL)
    kept.path.write_bytes(NEWER)

    kept.keeper.observe(replace(FATAL, xid=79))

    assert kept.path.read_bytes() == NEWER
    assert {one.signal for one in kept.keeper.health.findings} == {"xid-48", "xid-79"}


def test_a_lock_that_cannot_be_had_keeps_no_fault_from_being_fenced(kept):
    (kept.folder / "locks").write_text("in the way")

    kept.keeper.observe(GpuLost(gpu_uuid=ONE))

    assert [one.key for one in kept.keeper.fences()] == ["gpu.nvidia.com/gpu-lost"]
