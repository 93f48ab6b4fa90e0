"""A GPU-instance id stays granted for as long as a container that got it may run, whatever becomes of its partition."""

from __future__ import annotations

import pytest
from tesela.core.shape import Policy, PolicyRule, Shape
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.simulator.faults import Fault


@pytest.fixture
def ref(world):
    """A claim whose partition went with a reset while its container runs on."""
    ref = world.claim("holder", world.partition(0, "1g.5gb", 0))
    world.serve(ref)
    return ref


def gi_id_of(world, ref, position=0):
    return world.record(ref).devices[position].current.gi_id


def fail_in_nvml(world, ref):
    world.machine.inject(Fault(function="create_gpu_instance"))
    world.refuse(ref)


def refuse_in_the_plan(world, ref):
    world.foreign_id = world.make_foreign(0, "2g.10gb", 0)
    world.refuse(ref)
    world.destroy_by_hand(0, world.foreign_id)


def refuse_in_the_api(world, ref):
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.refuse(ref)


@pytest.mark.parametrize("attempt", [fail_in_nvml, refuse_in_the_plan, refuse_in_the_api])
def test_an_id_stays_granted_when_the_claim_cannot_be_made_again(world, ref, attempt):
    gi_id = gi_id_of(world, ref)
    world.reset(0)
    world.look()
    attempt(world, ref)
    world.machine.force_gi_id("0", gi_id)

    assert "still granted to claim default/holder" in world.refuse(world.claim("late", world.partition(0, "1g.5gb", 5)))


def test_an_id_is_free_once_the_claim_that_lost_it_ends(world, ref):
    gi_id = gi_id_of(world, ref)
    world.reset(0)
    world.look()
    fail_in_nvml(world, ref)
    world.unprepare(ref)
    world.machine.force_gi_id("0", gi_id)

    world.serve(world.claim("late", world.partition(0, "1g.5gb", 5)))


def test_a_boot_ends_all_grants(world, ref):
    """No container outlives it; the lost claim's record still names the id, of the boot before."""
    gi_id = gi_id_of(world, ref)
    world.reboot()
    world.machine.force_gi_id("0", gi_id)

    world.serve(world.claim("late", world.partition(0, "1g.5gb", 5)))


def test_a_request_does_not_get_the_id_that_another_request_of_its_claim_had(world):
    """A container may have been given one of the two requests, and runs on."""
    ref = world.claim("a", world.partition(0, "1g.5gb", 0), world.partition(0, "1g.5gb", 1))
    world.serve(ref)
    first, second = gi_id_of(world, ref, 0), gi_id_of(world, ref, 1)
    world.reset(0)
    world.look()
    world.machine.force_gi_id("0", second)
    world.machine.force_gi_id("0", first)

    sentence = world.refuse(ref)

    assert (f"id {second} of GPU" in sentence, "that use its request r1" in sentence, world.instances(0)) == (
        True,
        True,
        (),
    )


def test_a_request_may_get_its_own_id_again(world, ref):
    gi_id = gi_id_of(world, ref)
    world.reset(0)
    world.look()

    world.serve(ref)

    assert gi_id_of(world, ref) == gi_id


# Partitions that somebody else makes


@pytest.fixture
def static(build):
    """A claim whose static partition went by hand, and another one was made with its id elsewhere."""
    world = build("a100-40gb:mig", policy=Policy(rules=(PolicyRule(mode=Shape.STATIC),)))
    gi_id = world.make_foreign(0, "1g.5gb", 0)
    world.serve(world.claim("holder", world.partition(0, "1g.5gb", 0)))
    world.destroy_by_hand(0, gi_id)
    world.machine.force_gi_id("0", gi_id)
    world.make_foreign(0, "1g.5gb", 2)
    world.look()
    return world


def test_a_static_partition_with_an_id_still_granted_is_refused_naming_the_other_claim(static):
    sentence = static.refuse(static.claim("late", static.partition(0, "1g.5gb", 2)))

    assert "still granted to claim default/holder" in sentence


def test_a_static_partition_that_is_refused_stays(static):
    static.refuse(static.claim("late", static.partition(0, "1g.5gb", 2)))

    assert len(static.instances(0)) == 1


def test_a_static_partition_that_an_administrator_watches_is_handed_out(build):
    world = build("a100-40gb:mig", policy=Policy(rules=(PolicyRule(mode=Shape.STATIC),)))
    world.make_foreign(0, "1g.5gb", 0)
    device = world.partition(0, "1g.5gb", 0)
    world.serve(world.claim("watcher", device, adminAccess=True))

    world.serve(world.claim("owner", device))
