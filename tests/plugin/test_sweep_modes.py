"""A MIG mode that is refused again and again: health is told who holds it, and told when that is over."""

from __future__ import annotations

import pytest
from sweeping import Sweeps
from tesela.core.errors import TryAgain
from tesela.core.health.observations import ModeFree, ModeHeld
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process

BUSY = Process(pid=4711, name="trainer")
HOPPER = 2


class Health:
    """Takes what is observed about modes, and remembers it as the file would."""

    def __init__(self):
        self.told = []
        self.held = {}

    def observe(self, observation):
        self.told.append(observation)
        if isinstance(observation, ModeHeld):
            self.held[observation.gpu_uuid] = observation.wants_mig
        else:
            self.held.pop(observation.gpu_uuid, None)


@pytest.fixture
def health(world):
    health = Health()
    world.node.mode_holds.attach(health.observe, lambda: health.held)
    return health


@pytest.fixture
def ref(world):
    """A claim of a partition on an H100 out of MIG mode, where a process runs."""
    world.machine.add_process(str(HOPPER), BUSY)
    return world.claim("a", world.partition(HOPPER, "1g.10gb", 0))


def refuse(world, ref, times):
    for _ in range(times):
        world.refuse(ref)


def test_one_refusal_is_nothing(world, ref, health):
    refuse(world, ref, 1)

    assert health.told == []


def test_after_two_refusals_the_holder_is_told(world, ref, health):
    refuse(world, ref, 2)

    assert health.told == [ModeHeld(gpu_uuid=world.uuid(HOPPER), wants_mig=True, holder="trainer (pid 4711)")]


def test_refusals_of_two_claims_count_together(world, ref, health):
    refuse(world, ref, 1)

    refuse(world, world.claim("b", world.partition(HOPPER, "1g.10gb", 1)), 1)

    assert [one.wants_mig for one in health.told] == [True]


def test_refusals_of_the_other_mode_count_by_themselves(world, ref, health):
    refuse(world, ref, 1)
    world.machine.remove_process(str(HOPPER), BUSY.pid)
    world.set_mig(HOPPER, on=True)
    world.machine.add_process(str(HOPPER), BUSY)
    whole = world.claim("whole", f"gpu-{HOPPER}")

    refuse(world, whole, 1)
    after_one = list(health.told)
    refuse(world, whole, 1)

    assert (after_one, [one.wants_mig for one in health.told]) == ([], [False])


def test_a_switch_that_succeeds_ends_it(world, ref, health):
    refuse(world, ref, 2)
    world.machine.remove_process(str(HOPPER), BUSY.pid)

    world.serve(ref)

    assert health.told[-1] == ModeFree(gpu_uuid=world.uuid(HOPPER))


def test_a_switch_that_succeeds_between_two_refusals_begins_the_count_anew(world, ref, health):
    refuse(world, ref, 1)
    world.machine.remove_process(str(HOPPER), BUSY.pid)
    world.serve(ref)
    world.unprepare(ref)
    world.machine.add_process(str(HOPPER), BUSY)

    refuse(world, world.claim("whole", f"gpu-{HOPPER}"), 1)

    assert [one for one in health.told if isinstance(one, ModeHeld)] == []


def test_an_idle_gpu_is_free_at_the_next_sweep(world, ref, health):
    refuse(world, ref, 2)
    world.machine.remove_process(str(HOPPER), BUSY.pid)

    Sweeps(world).sweep()

    assert health.told[-1] == ModeFree(gpu_uuid=world.uuid(HOPPER))


def test_a_busy_one_is_not(world, ref, health):
    refuse(world, ref, 2)

    Sweeps(world).sweep()

    assert isinstance(health.told[-1], ModeHeld)


def test_one_whose_processes_cannot_be_asked_for_is_not(world, ref, health):
    refuse(world, ref, 2)
    world.machine.remove_process(str(HOPPER), BUSY.pid)
    world.machine.inject(Fault(function="get_graphics_running_processes", times=9))

    Sweeps(world).sweep()

    assert isinstance(health.told[-1], ModeHeld)


def test_a_gpu_that_was_switched_by_hand_is_free_though_somebody_is_on_it(world, ref, health):
    refuse(world, ref, 2)
    world.machine.remove_process(str(HOPPER), BUSY.pid)
    world.set_mig(HOPPER, on=True)
    world.machine.add_process(str(HOPPER), BUSY)

    Sweeps(world).sweep()

    assert health.told[-1] == ModeFree(gpu_uuid=world.uuid(HOPPER))


def test_a_gpu_that_is_gone_is_not_asked(world, ref, health, caplog):
    refuse(world, ref, 2)
    world.machine.lose(str(HOPPER), absent=True)
    world.look()

    Sweeps(world).sweep()

    assert "cannot be told" not in caplog.text
    world.reset(HOPPER)
    world.look()


def test_a_hold_from_before_a_restart_ends_when_the_gpu_is_idle(world, ref, health):
    refuse(world, ref, 2)
    world.machine.remove_process(str(HOPPER), BUSY.pid)
    world.start()
    world.node.mode_holds.attach(health.observe, lambda: health.held)

    Sweeps(world).sweep()

    assert health.held == {}


def test_a_hold_from_before_a_restart_ends_when_the_gpu_was_switched_by_hand_though_somebody_is_on_it(
    world, ref, health
):
    refuse(world, ref, 2)
    world.machine.remove_process(str(HOPPER), BUSY.pid)
    world.set_mig(HOPPER, on=True)
    world.machine.add_process(str(HOPPER), BUSY)
    world.start()
    world.node.mode_holds.attach(health.observe, lambda: health.held)

    Sweeps(world).sweep()

    assert health.held == {}


def test_health_that_cannot_be_noted_does_not_change_the_refusal(world, ref):
    def refuse_to_note(_observation):
        raise TryAgain("the disk is full")

    world.node.mode_holds.attach(refuse_to_note, dict)
    refuse(world, ref, 1)

    assert "held by trainer (pid 4711)" in world.refuse(ref)
