"""The roster goes, or goes bad, under claims that hold devices by the names in it."""

from __future__ import annotations

import pytest
from survive.program import Program
from sweeping import Sweeps
from tesela.edge.simulator.faults import Fault
from tesela.edge.store.roster import RosterStore


@pytest.fixture
def held(program):
    """A claim on a GPU whose partitions were lost to resets before it: its generation is not the first."""
    world = program.world
    for turn in range(3):
        ref = world.claim(f"c{turn}", world.partition(0, "1g.5gb", 6))
        world.serve(ref)
        if turn < 2:
            world.reset(0)
            world.look()
            world.unprepare(ref)
    world.lost_gpus.clear()
    assert generation(world) == 3
    return ref


def generation(world):
    return RosterStore(world.state_dir).read_roster().gpus[0].generation


def remove(path):
    path.unlink()


def damage(path):
    path.write_bytes(b"\x00" * 100)


@pytest.mark.parametrize("harm", [remove, damage])
def test_a_claim_ends_after_a_start_and_leaves_nothing(program, held, harm):
    harm(program.world.state_dir / "roster.json")
    program.start()

    assert (program.world.unprepare(held), program.world.leftovers()) == (None, [])


@pytest.mark.parametrize("harm", [remove, damage])
def test_a_claim_ends_under_a_running_driver_and_leaves_nothing(program, held, harm):
    harm(program.world.state_dir / "roster.json")
    program.world.look()

    assert (program.world.unprepare(held), program.world.leftovers()) == (None, [])


@pytest.mark.parametrize("harm", [remove, damage])
def test_the_roster_is_whole_after_the_next_look(program, held, harm):
    before = RosterStore(program.world.state_dir).read_roster()
    harm(program.world.state_dir / "roster.json")
    program.world.look()

    assert RosterStore(program.world.state_dir).read_roster() == before


@pytest.mark.parametrize("harm", [remove, damage])
def test_a_gpu_that_goes_after_it_is_noticed(program, held, harm):
    harm(program.world.state_dir / "roster.json")
    program.world.machine.lose("1", absent=True)
    program.world.lost_gpus.add(program.world.uuid(1))
    program.world.look()

    assert [known.present for known in program.world.node.lookout.roster.gpus] == [True, False]
    program.world.machine.reset(program.world.uuid(1))


def forget_roster(world):
    """The file and its copies are damaged: what is known of the GPUs is what slices and records tell."""
    for path in world.state_dir.glob("roster*.json"):
        damage(path)


@pytest.mark.parametrize("function", ["get_memory_info", "get_gpu_instance_profile_info", "get_mig_mode"])
def test_a_claim_outlives_a_start_without_roster_at_which_its_gpu_did_not_answer(program, function):
    """Nothing that is rebuilt tells its profiles, and without them its partitions are not seen."""
    world = program.world
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    before = world.serve(ref)
    forget_roster(world)
    world.machine.inject(Fault(function=function, gpu="0", times=None))

    program.start()
    world.machine.release()
    sight = Sweeps(world).sweep()
    world.look()

    assert (world.record(ref), len(sight.unknown)) == (before, 1)
    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_a_claim_on_a_gpu_without_mig_is_compared_after_a_start_without_roster(short_path):
    program = Program(short_path, "a30*2")
    world = program.world
    world.serve(world.claim("a", "gpu-0"))
    forget_roster(world)
    world.machine.inject(Fault(function="get_memory_info", gpu="0", times=None))
    program.start()
    world.machine.release()

    assert Sweeps(world).sweep().unknown == ()
    program.close()
