"""The driver dies before and after each port call of a sweep: nothing is lost, leaked, or taken from others."""

from __future__ import annotations

import itertools

import pytest
from node_tap import Crash, Tap
from node_world import make_world
from sweeping import Sweeps
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.simulator.faults import Fault
from tesela.plugin.sweep_look import GoneClaims, look


def gone_from_the_api(world, ref):
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.promised.pop(ref.uid)
    world.forget_containers(ref)


def half_given_back(world, ref):
    world.machine.inject(Fault(function="destroy_gpu_instance"))
    world.unprepare(ref)


def without_files(world, ref):
    world.cdi_path(ref).unlink()


def damaged(world, ref):
    world.record_path(ref).write_text("{")


def without_record(world, ref):
    world.record_path(ref).unlink()


def count_calls_of_a_look(world, tap):
    tap.disarm()
    look(world.node, GoneClaims(), asking_s=60.0)
    return len(tap.calls)


@pytest.fixture
def tap():
    return Tap()


@pytest.fixture
def world(tmp_path, tap):
    world = make_world(tmp_path, "a100-40gb:mig", wrap=tap.wrap)
    world.make_foreign(0, "2g.10gb", 0)
    return world


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("harm", [gone_from_the_api, half_given_back, without_files, damaged, without_record])
def test_a_death_in_a_sweep(world, tap, harm, phase):
    for turn in itertools.count():
        ref = world.claim(f"c{turn}", world.partition(0, "1g.5gb", 6))
        tap.disarm()
        world.serve(ref)
        harm(world, ref)
        sweeps = Sweeps(world)
        if harm is gone_from_the_api:
            sweeps.sweep()
        number = count_calls_of_a_look(world, tap) + turn  # which changes nothing, so a death in it is no matter
        tap.crash(number, phase)
        try:
            sweeps.sweep(after_s=600)
        except Crash:
            tap.disarm()
        else:
            break
        world.start()
        world.check()
        assert (world.unprepare(ref), world.leftovers()) == (None, []), f"after a death at call {number}"
    world.check()
