"""The driver dies before and after each write of a change of health: what anybody was told of is on disk."""

from __future__ import annotations

import pytest
from gpu_models import a100, gpu_uuid, roster
from node_tap import Crash
from tesela.core.health.observations import GpuLost, XidSeen
from tesela.core.health.signals import DEFAULT_HEALTH_POLICY
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLocks
from tesela.plugin.health.keeper import HealthKeeper

ONE, TWO = gpu_uuid(0), gpu_uuid(1)
STEPS = [
    XidSeen(gpu_uuid=ONE, xid=48),
    XidSeen(gpu_uuid=TWO, xid=79),
    GpuLost(gpu_uuid=ONE),
    XidSeen(gpu_uuid=ONE, xid=95),
]
WRITES = {"write_health", "set_aside"}


class DyingStore:
    """The store of a process that dies before or after its write with this number."""

    def __init__(self, folder, number, phase):
        self._inner, self._left, self._phase = HealthStore(folder), number, phase

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        return (lambda *args: self._write(value, *args)) if name in WRITES else value

    def _write(self, write, *args):
        dies, self._left = self._left == 0, self._left - 1
        if dies and self._phase == "before":
            raise Crash
        result = write(*args)
        if dies:
            raise Crash
        return result


def make_keeper(folder, store):
    return HealthKeeper(
        store=store,
        lock=FileLocks(folder).health_lock,
        policy=DEFAULT_HEALTH_POLICY,
        roster=lambda: roster(a100(0), a100(1)),
        clock=lambda: 1000.0,
    )


def list_findings(health):
    return {(finding.gpu_uuid, finding.signal) for finding in health.findings}


def live_until_death(folder, number, phase):
    """Every step in turn, until the process dies; what those who listen were told of until then."""
    told = set()
    keeper = make_keeper(folder, DyingStore(folder, number, phase))
    keeper.listen(lambda changes: told.update((one.gpu_uuid, one.signal) for c in changes for one in c.added))
    try:
        for step in STEPS:
            keeper.observe(step)
    except Crash:
        pass
    return told


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("number", range(len(STEPS) + 2))
def test_a_fault_that_anybody_was_told_of_outlives_a_death(tmp_path, number, phase, damaged):
    if damaged:
        (tmp_path / "health.json").write_text("{")
    told = live_until_death(tmp_path, number, phase)
    successor = make_keeper(tmp_path, HealthStore(tmp_path))
    successor.observe()

    assert told <= list_findings(successor.health)
