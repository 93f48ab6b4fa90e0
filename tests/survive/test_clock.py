"""The wall clock jumps, a year on or a year back: nothing that is waited for, remembered or given back hangs on it."""

from __future__ import annotations

import ast
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_models import a100, gpu_uuid, roster
from tesela.core.health.observations import XidSeen
from tesela.core.health.signals import DEFAULT_HEALTH_POLICY
from tesela.core.record import ClaimState
from tesela.edge.kubelet.listener import remove_dead_sockets
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.health.keeper import HealthKeeper

YEAR_S = 365 * 86400.0
JUMPS = [YEAR_S, -YEAR_S]
DRIVER = Path(__file__).parents[2] / "driver" / "tesela"
WALL = {"time", "time_ns", "now", "utcnow", "today"}

USES = {
    "cli/adoption.py": "the date of a preview, for people",
    "cli/bundle.py": "the archive's date",
    "cli/health.py": "the date of a clearance, for people",
    "cli/release_gpu.py": "the date of a request, for people",
    "edge/kubelet/health_wire.py": "the kubelet counts a report's age from its own clock, which is this one",
    "edge/kubelet/listener.py": "the age of a socket's file, from either side",
    "edge/store/copied_file.py": "a file younger than a tick is read again",
    "edge/store/records.py": "likewise",
    "plugin/adopt.py": "the date of a report, for people",
    "plugin/announce.py": "the dates of Events; its waits are tested in test_announce",
    "plugin/claim_status.py": "the dates of conditions",
    "plugin/health/keeper.py": "the dates of findings; its one wait is tested below",
    "plugin/release_gpu.py": "the date of a request, for people",
    "plugin/sweep.py": "the date of a report, for people",
}
"""Where the driver asks what time it is, and what for. Waits and deadlines are of the monotonic clock."""


def asks_the_wall_clock(node):
    return (
        isinstance(node, ast.Attribute) and node.attr in WALL and getattr(node.value, "id", "") in {"time", "datetime"}
    )


def test_every_use_of_the_wall_clock_is_known():
    files = [path for path in DRIVER.rglob("*.py") if not {"pb", "simulator", "embedded"} & set(path.parts)]
    found = {
        path.relative_to(DRIVER).as_posix()
        for path in files
        if any(asks_the_wall_clock(node) for node in ast.walk(ast.parse(path.read_text())))
    }

    assert found == USES.keys()


def jump(world, by_s):
    """What a clock that was wrong until now leaves behind."""
    then_s = time.time() + by_s
    for path in world.state_dir.rglob("*"):
        os.utime(path, (then_s, then_s))


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_claim_from_before_a_jump_ends(world, ref, by_s):
    jump(world, by_s)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_change_by_another_process_after_a_jump_is_seen(world, ref, by_s):
    jump(world, by_s)
    world.node.records.list()
    RecordStore(world.state_dir).write(replace(world.record(ref), state=ClaimState.UNPREPARING))

    assert [one.state for one in world.node.records.list().records] == [ClaimState.UNPREPARING]
    world.promised.clear()


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_roster_that_changes_after_a_jump_is_read_again(tmp_path, by_s):
    store, other = RosterStore(tmp_path), RosterStore(tmp_path)
    other.write_roster(roster(a100(0)))
    os.utime(store.path, (time.time() + by_s,) * 2)
    store.read_roster()
    other.write_roster(roster(a100(0), a100(1)))

    assert len(store.read_roster().gpus) == 2


@pytest.mark.parametrize("by_s", JUMPS)
def test_the_socket_of_a_dead_process_goes_whatever_its_date(tmp_path, by_s):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    os.utime(path, (time.time() + by_s,) * 2)

    remove_dead_sockets(tmp_path, lambda name: name == "dead.sock")

    assert not path.exists()


class Kept:
    """The health of one GPU under a clock that is set by hand."""

    def __init__(self, folder):
        self.now_s = 10 * YEAR_S
        self.store = HealthStore(folder)
        self.keeper = HealthKeeper(
            store=HealthStore(folder),
            lock=FileLocks(folder).health_lock,
            policy=DEFAULT_HEALTH_POLICY,
            roster=lambda: roster(a100(0)),
            clock=lambda: self.now_s,
        )

    def see(self):
        self.keeper.observe(XidSeen(gpu_uuid=gpu_uuid(0), xid=48))

    def count(self):
        return [finding.count for finding in self.store.read_health().findings]


@pytest.fixture
def kept(tmp_path):
    kept = Kept(tmp_path)
    kept.see()
    return kept


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_fault_stands_through_a_jump(kept, by_s):
    kept.now_s += by_s
    kept.keeper.observe()

    assert kept.count() == [1]


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_fault_that_recurs_after_a_jump_is_counted_on_disk(kept, by_s):
    kept.now_s += by_s
    kept.see()

    assert kept.count() == [2]


def test_a_fault_is_not_seen_last_before_it_was_seen_first(kept):
    kept.now_s -= YEAR_S
    kept.see()

    (finding,) = kept.store.read_health().findings
    assert finding.since_s <= finding.last_s
