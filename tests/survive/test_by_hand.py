"""An administrator or the machine changes what claims rely on, behind the driver's back."""

from __future__ import annotations

import pytest
from tesela.core.model import Refusal
from tesela.core.record import ClaimState

# MIG mode, changed by hand


def test_a_gpu_that_was_switched_on_by_hand_is_switched_back_for_a_whole_claim(world):
    world.set_mig(2, on=True)

    assert world.serve(world.claim("a", "gpu-2"))


def test_a_gpu_that_was_switched_off_by_hand_is_switched_on_for_a_partition(world):
    world.serve(first := world.claim("a", world.partition(2, "1g.10gb", 0)))
    world.unprepare(first)
    world.set_mig(2, on=False)

    assert world.serve(world.claim("b", world.partition(2, "1g.10gb", 0)))


def switch_off_under(world, number):
    """As an administrator does it: first everything on the GPU goes, then the mode."""
    for instance in world.instances(number):
        for compute in instance.compute_instances:
            world.admin.destroy_compute_instance(world.uuid(number), instance.gi_id, compute.ci_id)
        world.admin.destroy_gpu_instance(world.uuid(number), instance.gi_id)
    world.set_mig(number, on=False)
    world.lost_gpus.add(world.uuid(number))
    world.unnoticed.add(world.uuid(number))


@pytest.fixture
def switched_off(world):
    """The claim of a partition whose GPU was switched out of MIG mode under it."""
    ref = world.claim("a", world.partition(2, "1g.10gb", 0))
    world.serve(ref)
    switch_off_under(world, 2)
    return ref


@pytest.mark.parametrize("noticed", [False, True])
def test_a_claim_whose_gpu_was_switched_off_under_it_ends(world, switched_off, noticed):
    if noticed:
        world.look()

    assert (world.unprepare(switched_off), world.leftovers()) == (None, [])


@pytest.mark.parametrize("noticed", [False, True])
def test_a_claim_whose_gpu_was_switched_off_under_it_is_made_again(world, switched_off, noticed):
    if noticed:
        world.look()

    assert world.serve(switched_off)


def test_a_claim_whose_gpu_was_switched_off_under_it_is_prepared_no_longer(world, switched_off):
    world.look()

    assert (world.record(switched_off).state, world.cdi_path(switched_off).exists()) == (ClaimState.PREPARING, False)


def test_an_ampere_that_was_switched_off_by_hand_is_refused_with_the_way_back(world):
    world.admin.set_mig_mode(world.uuid(0), 0)  # pending until the reset
    world.reset(0)
    world.look()

    assert "MIG mode" in world.refuse(world.claim("a", world.partition(0, "1g.5gb", 6)))


def test_whole_gpu_claim_outlives_a_switch_by_hand(world):
    """It keeps the GPU, whose mode is the administrator's doing."""
    ref = world.claim("a", "gpu-3")
    world.serve(ref)
    world.set_mig(3, on=True)
    world.look()

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


# A partition, destroyed by hand under a running claim


@pytest.fixture
def held(world):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    return ref


def half_destroy(world):
    """Only the compute instance goes."""
    (instance,) = world.instances(0)
    world.admin.destroy_compute_instance(world.uuid(0), instance.gi_id, instance.compute_instances[0].ci_id)
    world.lost_gpus.add(world.uuid(0))
    world.unnoticed.add(world.uuid(0))


def destroy(world):
    world.destroy_by_hand(0, world.instances(0)[0].gi_id)


def destroy_and_take_its_place(world):
    destroy(world)
    world.make_foreign(0, "1g.5gb", 6)


@pytest.mark.parametrize("harm", [destroy, half_destroy, destroy_and_take_its_place])
def test_a_claim_whose_partition_went_by_hand_ends(world, held, harm):
    harm(world)

    assert world.unprepare(held) is None


@pytest.mark.parametrize("harm", [destroy, half_destroy])
def test_a_claim_whose_partition_went_by_hand_leaves_nothing(world, held, harm):
    harm(world)
    world.unprepare(held)
    world.look()

    assert world.leftovers() == []


def test_a_place_that_was_taken_meanwhile_is_left_to_who_took_it(world, held):
    destroy_and_take_its_place(world)

    assert "was not made by Tesela" in world.refuse(held)


# Boots


@pytest.fixture
def claims(build):
    """A partition, a whole GPU and a claim of both kinds, on GPUs whose minors move with each boot."""
    world = build("a100-40gb:mig,h100-80gb,h100-80gb")
    world.machine.shift_minors = True
    refs = [
        world.claim("partition", world.partition(0, "1g.5gb", 6)),
        world.claim("whole", "gpu-1"),
        world.claim("both", world.partition(0, "1g.5gb", 0), "gpu-2"),
    ]
    for ref in refs:
        world.serve(ref)
    return world, refs


def test_every_claim_is_served_after_a_boot(claims):
    world, refs = claims
    world.reboot()

    assert not any(isinstance(world.prepare(ref), Refusal) for ref in refs)


def test_every_claim_ends_after_a_boot(claims):
    world, refs = claims
    world.reboot()

    assert ([world.unprepare(ref) for ref in refs], world.leftovers()) == ([None] * 3, [])


def test_every_claim_has_its_files_of_today_after_a_boot(claims):
    """The folder of CDI files was empty; what is in it now names today's device nodes."""
    world, refs = claims
    world.reboot()
    for ref in refs:
        world.serve(ref)

    minors = [{world.machine.gpu(uuid).minor for uuid in world.record(ref).gpu_uuids} for ref in refs]
    named = [world.cdi_path(ref).read_text() for ref in refs]
    assert all(f'"/dev/nvidia{minor}"' in text for text, wanted in zip(named, minors, strict=True) for minor in wanted)


@pytest.fixture
def one_dead(claims):
    """GPU 0 is dead since the boot, so that the others have other indices and minors."""
    world, refs = claims
    before = world.machine.gpu(world.uuid(1)).minor
    world.machine.reboot()
    world.machine.lose("0", absent=True)
    world._lose_everything()
    world.granted.clear()
    world.promised.clear()
    for path in world.cdi_dir.glob("*"):
        path.unlink()
    world.start()
    assert world.machine.gpu(world.uuid(1)).minor != before
    return world, refs


def test_a_card_that_is_dead_after_a_boot_keeps_its_name_and_the_others_theirs(one_dead):
    world, _ = one_dead
    roster = world.node.lookout.roster

    assert [(known.number, known.gpu.uuid, known.present) for known in roster.gpus] == [
        (number, world.uuid(number), number != 0) for number in range(3)
    ]


def test_a_claim_beside_a_dead_card_gets_the_node_of_its_own_gpu(one_dead):
    world, (_, whole, _) = one_dead
    world.serve(whole)

    minor = world.machine.gpu(world.uuid(1)).minor
    assert (world.record(whole).gpu_uuids, f'"/dev/nvidia{minor}"' in world.cdi_path(whole).read_text()) == (
        (world.uuid(1),),
        True,
    )


def test_a_claim_of_a_dead_card_is_refused_and_ends(one_dead):
    world, (partition, _, both) = one_dead
    refused = [world.refuse(ref) for ref in (partition, both)]

    assert (all(world.uuid(0) in one for one in refused), [world.unprepare(ref) for ref in (partition, both)]) == (
        True,
        [None, None],
    )


def test_a_new_claim_beside_a_dead_card_is_served_where_it_was_allocated(one_dead):
    world, (_, _, both) = one_dead
    world.unprepare(both)
    new = world.serve(world.claim("new", world.partition(2, "1g.10gb", 0)))

    assert new.gpu_uuids == (world.uuid(2),)
