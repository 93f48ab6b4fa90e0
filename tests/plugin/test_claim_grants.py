"""A GPU-instance id stays granted for as long as a container that got it may run, whatever becomes of its partition."""

from __future__ import annotations

import pytest
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
