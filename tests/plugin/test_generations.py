"""Boots, resets, module reloads and lost GPUs: what went with them is not given out, and nothing else is destroyed."""

from __future__ import annotations

import pytest
from tesela.core.claim_status import find_losses
from tesela.core.record import ClaimState
from tesela.edge.simulator.faults import Fault


def generation(world, number):
    return world.node.lookout.roster.find_number(number).generation


def reset(world):
    world.reset(0)
    world.look()


def lose_and_find(world):
    world.machine.lose("0", absent=True)
    world.lost_gpus.add(world.uuid(0))
    world.look()
    world.machine.reset(world.uuid(0))
    world.look()


def reload_module(world):
    world.reload_module()
    world.look()


def reboot(world):
    world.reboot()


EVENTS = [reset, lose_and_find, reload_module, reboot]


@pytest.mark.parametrize("event", EVENTS)
def test_the_generation_rises(world, ref, event):
    before = generation(world, 0)

    event(world)

    assert generation(world, 0) == before + 1


@pytest.mark.parametrize("event", EVENTS)
def test_the_files_of_a_lost_claim_go(world, ref, event):
    event(world)

    assert not world.cdi_path(ref).exists()


@pytest.mark.parametrize("event", EVENTS)
def test_preparing_again_makes_a_new_partition(world, ref, event):
    before = world.record(ref).devices[0].current.mig_uuid
    event(world)

    after = world.serve(ref).devices[0].current.mig_uuid

    assert [c.mig_uuid for i in world.instances(0) for c in i.compute_instances] == [after] != [before]


@pytest.mark.parametrize("event", EVENTS)
def test_what_others_made_in_the_place_meanwhile_is_not_destroyed(world, ref, event):
    event(world)
    gi_id = world.make_foreign(0, "1g.5gb", 6)

    world.unprepare(ref)

    assert [instance.gi_id for instance in world.instances(0)] == [gi_id]


def test_what_others_made_before_the_driver_looked_is_not_destroyed(world, ref):
    world.reset(0)
    gi_id = world.make_foreign(0, "1g.5gb", 6)

    world.unprepare(ref)

    assert [instance.gi_id for instance in world.instances(0)] == [gi_id]


def test_the_claims_of_other_gpus_stay(world, ref):
    other = world.claim("b", world.partition(2, "1g.10gb", 0))
    world.serve(other)

    reset(world)

    assert world.record(other).state is ClaimState.PREPARED


def test_a_look_that_finds_one_partition_of_two_gone_raises_nothing(world, ref):
    other = world.claim("b", world.partition(0, "1g.5gb", 0))
    gi_id = world.serve(other).devices[0].current.gi_id
    before = generation(world, 0)

    world.destroy_by_hand(0, gi_id)

    assert generation(world, 0) == before


def test_a_partition_of_two_that_went_by_hand_is_of_no_prepared_claim(world, ref):
    other = world.claim("b", world.partition(0, "1g.5gb", 0))
    gi_id = world.serve(other).devices[0].current.gi_id

    world.destroy_by_hand(0, gi_id)

    assert (world.record(other).state, world.cdi_path(other).exists()) == (ClaimState.PREPARING, False)


def test_a_prepare_that_dies_after_a_loss_forgets_no_granted_id(world, ref):
    """The container from before may run on, and open whatever gets its instance id."""
    gi_id = world.record(ref).devices[0].current.gi_id
    world.reset(0)
    world.look()
    world.machine.inject(Fault(function="create_gpu_instance"))
    world.refuse(ref)
    world.start()
    world.machine.force_gi_id("0", gi_id)

    assert "still granted to claim default/a" in world.refuse(world.claim("b", world.partition(0, "1g.5gb", 0)))


def test_a_whole_gpu_is_still_prepared_after_a_boot(world):
    ref = world.claim("w", "gpu-1")
    world.serve(ref)

    world.reboot()

    assert (world.record(ref).state, world.cdi_path(ref).exists()) == (ClaimState.PREPARED, True)


def test_a_lost_gpu_with_partitions_is_noticed(world, ref):
    world.machine.lose("0")
    world.lost_gpus.add(world.uuid(0))

    world.look()

    assert not world.node.lookout.roster.find_number(0).present


def test_a_lost_gpu_lets_its_claim_end(world, ref):
    world.machine.lose("0", absent=True)

    assert world.unprepare(ref) is None


def test_a_gpu_that_does_not_answer_keeps_its_generation(world, ref):
    before = generation(world, 0)
    world.machine.inject(Fault(function="get_name", gpu=world.uuid(0)))

    world.look()

    assert (generation(world, 0), world.node.lookout.roster.find_number(0).present) == (before, True)


def test_a_gpu_that_was_silent_during_a_reload_is_of_a_new_generation_all_the_same(world, ref):
    before = generation(world, 0)
    world.reload_module()
    world.machine.inject(Fault(function="get_name", gpu=world.uuid(0)))
    world.look()

    assert generation(world, 0) == before + 1


def test_a_second_look_raises_nothing(world, ref):
    reset(world)
    before = generation(world, 0)

    world.look()

    assert generation(world, 0) == before


def test_moved_minors_reach_the_workload(build):
    world = build("a100-40gb:mig*2")
    world.machine.shift_minors = True
    ref = world.claim("w", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    world.reboot()
    world.serve(ref)

    minor = world.machine.gpu(world.uuid(0)).minor
    assert (minor, f'"/dev/nvidia{minor}"' in world.cdi_path(ref).read_text()) == (1, True)


UNNOTICED = [lambda world: world.reset(0), lambda world: world.reload_module()]


@pytest.mark.parametrize("event", UNNOTICED, ids=["reset", "reload"])
def test_a_partition_made_before_anybody_noticed_is_not_taken_for_a_lost_one(world, ref, event):
    event(world)
    late = world.claim("late", world.partition(0, "1g.5gb", 0))
    world.serve(late)
    world.look()

    assert (world.unprepare(late), world.unprepare(ref), world.leftovers()) == (None, None, [])


@pytest.mark.parametrize("event", UNNOTICED, ids=["reset", "reload"])
def test_a_partition_half_made_before_anybody_noticed_is_undone(world, ref, event):
    event(world)
    late = world.claim("late", world.partition(0, "1g.5gb", 0))
    world.machine.inject(Fault(function="create_compute_instance"))
    world.machine.inject(Fault(function="destroy_gpu_instance", times=2))
    world.refuse(late)
    world.start()

    assert world.instances(0) == ()


def test_a_claim_given_back_between_the_two_looks_is_no_loss(world, ref):
    known = world.node.lookout.roster.find_number(0)
    world.unprepare(ref)

    assert not world.node.lookout._is_lost(known, emptied=True)


def test_a_partition_half_made_after_a_reload_that_nobody_noticed_is_undone(world):
    """No claim was there to lose anything: only the module tells."""
    world.reload_module()
    late = world.claim("late", world.partition(0, "1g.5gb", 0))
    world.machine.inject(Fault(function="create_compute_instance"))
    world.machine.inject(Fault(function="destroy_gpu_instance", times=2))
    world.refuse(late)
    world.start()

    assert world.instances(0) == ()


def test_what_another_process_makes_during_a_look_is_not_taken_for_lost(world, ref):
    """The look has seen the GPU before it, and the record after it."""
    other = world.build()
    other.lookout.refresh()
    late = world.claim("late", world.partition(0, "1g.5gb", 0))
    pending = [lambda: world.serve(late, other)]
    world.machine.on_call.append(
        lambda name, phase: (
            pending.pop()() if pending and name == "get_cuda_driver_version" and phase == "after" else None
        )
    )
    world.reset(0)
    world.look()

    assert (world.unprepare(late), world.unprepare(ref), world.leftovers()) == (None, None, [])


def test_a_lost_partition_keeps_the_whole_gpu_away_until_its_claim_ends(world):
    """Nothing lives in the way, and its containers may run."""
    holder = world.claim("holder", world.partition(2, "1g.10gb", 0))
    world.serve(holder)
    world.reset(2)
    world.look()
    whole = world.claim("whole", "gpu-2")
    assert "still held by claim default/holder" in world.refuse(whole)
    world.unprepare(holder)

    world.serve(whole)


def test_a_claim_half_given_back_is_no_part_of_a_reset_that_was_none(world, ref):
    """The only other partition was destroyed by hand: what is half given back still stands, and is given back."""
    other = world.claim("b", world.partition(0, "1g.5gb", 0))
    other_gi = world.serve(other).devices[0].current.gi_id
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    world.unprepare(ref)

    world.destroy_by_hand(0, other_gi)
    answers = (world.unprepare(ref), world.unprepare(other))

    assert (answers, world.leftovers()) == ((None, None), [])


def interrupted(world, ref):
    return [device.interrupted for device in world.record(ref).devices]


def absent_and_back(world):
    world.machine.lose("1", absent=True)
    world.look()
    world.machine.reset(world.uuid(1))
    world.look()


@pytest.mark.parametrize("event", [reload_module, absent_and_back])
def test_a_whole_gpu_whose_driver_went_under_it_is_still_prepared(world, event):
    ref = world.claim("w", "gpu-1")
    world.serve(ref)

    event(world)

    assert (world.record(ref).state, interrupted(world, ref)) == (ClaimState.PREPARED, [True])


def test_a_boot_interrupts_nobody(world):
    ref = world.claim("w", "gpu-1")
    world.serve(ref)
    reload_module(world)

    world.reboot()

    assert interrupted(world, ref) == [False]


def test_preparing_an_interrupted_claim_again_starts_no_container_anew(world):
    """A kubelet that was restarted asks for it; before the look of the monitor, even."""
    ref = world.claim("w", "gpu-1")
    world.serve(ref)
    world.reload_module()
    world.node.lookout.refresh()

    world.serve(ref)

    assert interrupted(world, ref) == [True]


def test_the_next_claim_of_the_gpu_is_not_interrupted(world):
    ref = world.claim("w", "gpu-1")
    world.serve(ref)
    reload_module(world)
    world.unprepare(ref)

    after = world.claim("v", "gpu-1")
    world.serve(after)

    assert interrupted(world, after) == [False]


def test_admin_access_is_not_interrupted(world):
    ref = world.claim("w", "gpu-1", adminAccess=True)
    world.serve(ref)

    reload_module(world)

    assert interrupted(world, ref) == [False]


def test_a_claim_of_a_partition_and_a_whole_gpu_is_interrupted_there_and_lost_here(world):
    ref = world.claim("w", "gpu-1", world.partition(0, "1g.5gb", 6))
    world.serve(ref)

    reload_module(world)

    assert {one.reason for one in find_losses(world.record(ref)).values()} == {"Interrupted", "PartitionLost"}
