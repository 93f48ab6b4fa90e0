"""A MIG mode that somebody holds, from the refused claim to the published taint and back."""

from __future__ import annotations

from functools import partial

import pytest
from sweeping import Sweeps
from tesela.core.slices.pool import render_pool
from tesela.core.slices.state import ApiAbilities
from tesela.edge.simulator.gpu import Process
from tesela.plugin.assembly import _list_mode_held
from tesela.plugin.pool_state import read_pool_state

BUSY = Process(pid=4711, name="trainer")
HOPPER = 2
KEY = "gpu.nvidia.com/mode-held"


def attach(world):
    """As the program joins them."""
    world.node.mode_holds.attach(world.node.health.observe, partial(_list_mode_held, world.node.health))


def list_taints(world):
    """The values of the taint by device."""
    pool = render_pool(read_pool_state(world.node), ApiAbilities())
    return {
        device["name"]: taint["value"]
        for content in pool.slices
        for device in content.devices
        for taint in device.get("taints", ())
        if taint["key"] == KEY
    }


@pytest.fixture
def held(world):
    """A node where a partition of an H100 was refused twice, since a process keeps it out of MIG mode."""
    attach(world)
    world.machine.add_process(str(HOPPER), BUSY)
    ref = world.claim("a", world.partition(HOPPER, "1g.10gb", 0))
    for _ in range(2):
        world.refuse(ref)
    return world


def test_the_partitions_are_tainted_and_the_whole_gpu_is_not(held):
    tainted = list_taints(held)

    assert (len(tainted) > 20, f"gpu-{HOPPER}" in tainted) == (True, False)


def test_no_other_gpu_is_tainted(held):
    assert {name for name in list_taints(held) if not name.startswith(f"gpu-{HOPPER}-")} == set()


def test_the_taint_names_the_holder(held):
    assert set(list_taints(held).values()) == {"mig-on-held-by-trainer--pid-4711"}


def test_the_whole_gpu_is_tainted_where_it_is_what_cannot_be_had(world):
    attach(world)
    world.set_mig(HOPPER, on=True)
    world.machine.add_process(str(HOPPER), BUSY)
    for name in ("a", "b"):
        world.refuse(world.claim(name, f"gpu-{HOPPER}"))

    assert set(list_taints(world)) == {f"gpu-{HOPPER}"}


def test_it_ends_when_a_sweep_sees_the_gpu_idle(held):
    held.machine.remove_process(str(HOPPER), BUSY.pid)

    Sweeps(held).sweep()

    assert list_taints(held) == {}


def test_it_stands_after_a_restart_and_ends_with_the_holder(held):
    held.start()
    held.node.health.observe()
    attach(held)
    stood = bool(list_taints(held))
    held.machine.remove_process(str(HOPPER), BUSY.pid)

    Sweeps(held).sweep()

    assert (stood, list_taints(held)) == (True, {})


def test_a_switch_by_hand_ends_it_after_a_restart_though_somebody_is_on_the_gpu(held):
    held.machine.remove_process(str(HOPPER), BUSY.pid)
    held.set_mig(HOPPER, on=True)
    held.machine.add_process(str(HOPPER), BUSY)
    held.start()
    held.node.health.observe()
    attach(held)

    Sweeps(held).sweep()

    assert list_taints(held) == {}
