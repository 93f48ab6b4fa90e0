"""A damaged roster: names come back as they were, from what hangs on them, and claims can still be given back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from node_tap import Crash
from node_world import POOL
from tesela.core.errors import StartError
from tesela.core.health.observations import XidSeen
from tesela.core.record import ClaimState
from tesela.core.slices.state import PoolState
from tesela.edge.embedded.faults import FlakyKube, unavailable
from tesela.edge.kube.port import NODES, RESOURCE_SLICES
from tesela.edge.store.health import HealthStore
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.monitor import look_at_gpus
from tesela.plugin.publish import Publisher
from tesela.plugin.roster_repair import repair_roster


def store(world):
    return RosterStore(world.state_dir)


def publish(world):
    """This node's slices, as the roster says now."""
    roster = store(world).read_roster()
    Publisher(
        kube=world.kube,
        node_name=POOL,
        state=lambda: PoolState(pool=POOL, roster=roster),
        lock=world.node.locks.publisher_lock(),
    ).publish()


def renumber(world, *numbers):
    """The GPUs carry these numbers, as after years of exchanged boards."""
    roster = store(world).read_roster()
    gpus = [replace(known, number=number) for known, number in zip(roster.gpus, numbers, strict=True)]
    store(world).write_roster(replace(roster, gpus=tuple(gpus)))
    world.start()


def copy_of(world):
    return store(world).path.with_name("roster.copy.json")


def damage(world):
    """The file and its copy."""
    store(world).path.write_text("{")
    copy_of(world).write_text("{")


def repair(world, kube=None):
    repair_roster(store(world), RecordStore(world.state_dir), world.node.locks, kube or world.kube, POOL)


def numbers(world):
    return {known.gpu.uuid: known.number for known in store(world).read_roster().gpus}


@pytest.fixture
def world(world):
    """Two A100 in MIG mode or not, and two H100, on a registered node."""
    world.kube.create(NODES, {"metadata": {"name": POOL}})
    return world


def test_names_come_back_from_the_slices(world):
    renumber(world, 3, 9, 0, 7)
    publish(world)
    before = numbers(world)
    damage(world)

    repair(world)

    world.start()
    assert numbers(world) == before


def test_what_is_published_stays_the_same(world):
    renumber(world, 3, 9, 0, 7)
    publish(world)
    before = world.kube.list(RESOURCE_SLICES).items
    damage(world)
    repair(world)
    world.start()

    publish(world)

    assert world.kube.list(RESOURCE_SLICES).items == before


def test_names_come_back_from_the_records(world):
    renumber(world, 3, 9, 0, 7)
    world.serve(world.claim("a", "gpu-7"))
    held = world.node.lookout.roster.find_number(7).gpu.uuid
    damage(world)

    repair(world)

    world.start()
    assert numbers(world)[held] == 7


def test_a_gpu_that_is_gone_keeps_its_name_and_facts(world):
    publish(world)
    gone = world.node.lookout.roster.find_number(3)
    world.machine.lose("3", absent=True)
    damage(world)

    repair(world)

    world.start()
    known = world.node.lookout.roster.find_number(3)
    assert (known.gpu.uuid, known.present, known.gpu.product_name) == (gone.gpu.uuid, False, gone.gpu.product_name)


def test_a_claim_is_still_prepared(world, ref):
    damage(world)

    repair(world)

    world.start()
    assert world.record(ref).state is ClaimState.PREPARED


def test_a_claim_can_be_given_back(world, ref):
    damage(world)
    repair(world)
    world.start()

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_what_others_made_after_a_reset_in_the_place_of_a_claim_is_not_destroyed(world, ref):
    """Nothing tells that the record's generation is over, but that its partition does not live."""
    world.reset(0)
    gi_id = world.make_foreign(0, "1g.5gb", 6)
    damage(world)
    repair(world)
    world.start()

    world.unprepare(ref)

    assert [instance.gi_id for instance in world.instances(0)] == [gi_id]


def test_the_damaged_bytes_are_kept(world, ref):
    damage(world)

    repair(world)

    assert (world.state_dir / "aside" / "roster.1.json").read_text() == "{"


def test_a_node_that_nothing_hangs_on_starts_as_one_never_seen(world):
    damage(world)

    repair(world)

    assert store(world).read_roster().gpus == ()


def test_a_roster_that_is_whole_is_left_alone(world):
    before = store(world).path.read_bytes()

    repair(world)

    assert store(world).path.read_bytes() == before


def test_a_roster_of_another_release_is_left_alone(world):
    publish(world)
    before = store(world).path.read_text()
    text = json.dumps({**json.loads(before), "version": 3})
    store(world).path.write_text(text)

    with pytest.raises(StartError, match="run the release of tesela that wrote it"):
        repair(world)

    assert store(world).path.read_text() == text
    store(world).path.write_text(before)


def refusal(world, kube=None):
    path, text = store(world).path, store(world).path.read_text()
    damage(world)
    with pytest.raises(StartError) as said:
        repair(world, kube)
    assert path.read_text() == "{"
    path.write_text(text)
    return str(said.value)


def test_records_that_cannot_be_read_and_no_slice_leave_nothing_to_rebuild_from(world, ref):
    text = world.record_path(ref).read_text()
    world.record_path(ref).write_text("{")

    said = refusal(world)

    assert "neither they nor a ResourceSlice name a GPU; drain the node, remove" in said
    world.record_path(ref).write_text(text)


def test_slices_and_records_that_contradict_each_other_are_named(world):
    publish(world)
    renumber(world, 0, 1, 3, 2)
    world.serve(world.claim("w", "gpu-2"))

    assert "device gpu-2 means GPU" in refusal(world)


def test_an_api_server_that_is_away_is_named(world):
    kube = FlakyKube(world.kube, unavailable(calls=9))

    assert "see to the API server, then start the driver again" in refusal(world, kube)


def signals(world):
    return [one.signal for one in HealthStore(world.state_dir).read_health().findings]


def see_xid(world):
    """Xid 48 on GPU 0, on disk."""
    world.node.health.observe(XidSeen(gpu_uuid=world.uuid(0), xid=48))


@pytest.fixture(params=[1, 5])
def repaired(request, world):
    """A driver that began on a roster that was rebuilt, GPU 0 having a generation and Xid 48."""
    roster = store(world).read_roster()
    store(world).write_roster(roster.replace_gpu(replace(roster.gpus[0], generation=request.param)))
    publish(world)
    see_xid(world)
    damage(world)
    repair(world)
    world.start()
    world.node.health.observe()
    return world


def test_a_damaged_roster_proves_no_reset(repaired):
    assert signals(repaired) == ["xid-48"]


def test_a_reset_after_a_damaged_roster_proves_one(repaired):
    world = repaired
    world.serve(world.claim("a", world.partition(0, "1g.5gb", 6)))
    world.reset(0)  # as nobody could while this process has NVML open

    world.node = world.build()
    look_at_gpus(world.node)

    assert signals(world) == []


def test_a_damaged_roster_interrupts_no_claim(world):
    ref = world.claim("w", "gpu-1")
    before = world.serve(ref)
    publish(world)
    damage(world)
    repair(world)

    world.start()

    assert world.record(ref) == before


# The copy


def damage_one(world):
    store(world).path.write_text("{")


def test_a_damaged_roster_is_put_back_from_its_copy(world):
    renumber(world, 3, 9, 0, 7)
    before = store(world).path.read_bytes()
    damage_one(world)

    repair(world)

    assert store(world).path.read_bytes() == before


def test_a_roster_that_is_gone_under_a_claim_is_put_back_from_its_copy(world, ref):
    before = store(world).path.read_bytes()
    store(world).path.unlink()

    repair(world)

    assert store(world).path.read_bytes() == before


def test_a_roster_that_was_removed_with_all_claims_stays_so(world):
    """As an operator does who wants the GPUs numbered anew."""
    store(world).path.unlink()

    repair(world)

    assert not store(world).path.exists()


def test_no_api_server_is_asked_where_there_is_a_copy(world):
    before = store(world).path.read_bytes()
    damage_one(world)

    repair(world, FlakyKube(world.kube, unavailable(calls=9)))

    assert store(world).path.read_bytes() == before


def half_make(world):
    """The driver dies between making a GPU instance and writing down its UUID."""
    ref = world.claim("h", world.partition(0, "1g.5gb", 6))
    world.machine.on_call.append(_die_after_creating)
    with pytest.raises(Crash):
        world.prepare(ref)
    world.machine.on_call.remove(_die_after_creating)
    return ref


def _die_after_creating(name, phase):
    if (name, phase) == ("create_compute_instance", "before"):
        raise Crash("after the GPU instance was made")


def test_what_a_half_done_claim_made_is_not_left_to_people(world):
    ref = half_make(world)
    damage_one(world)
    repair(world)
    world.start()

    world.unprepare(ref)

    assert world.leftovers() == []


def test_what_a_claim_with_a_damaged_record_has_is_not_left_to_people(world):
    roster = store(world).read_roster()
    store(world).write_roster(roster.replace_gpu(replace(roster.gpus[0], generation=5)))
    world.start()
    held = world.claim("h", world.partition(0, "2g.10gb", 0))
    world.serve(held)
    world.record_path(held).write_text("{")
    damage_one(world)
    repair(world)
    world.start()

    assert (world.unprepare(held), world.leftovers()) == (None, [])


def test_a_copy_that_lags_is_renewed_at_a_start(world):
    copy_of(world).write_text("{")

    repair(world)

    assert copy_of(world).read_bytes() == store(world).path.read_bytes()


def test_a_copy_that_does_not_know_a_claim_s_gpu_by_its_name_is_of_no_use(world):
    old = copy_of(world).read_bytes()
    renumber(world, 3, 9, 0, 7)
    publish(world)
    before = numbers(world)
    world.serve(world.claim("a", "gpu-7"))
    damage(world)
    copy_of(world).write_bytes(old)

    repair(world)

    assert numbers(world) == before


def test_what_another_process_raised_is_in_what_a_running_one_puts_back(world, ref):
    """It has not read it yet, and nothing else tells it: the claim is over."""
    other = world.build()
    other.lookout.refresh()
    world.reset(0)
    other.lookout.refresh()
    world.unprepare(ref, other)
    raised = store(world).read_roster()
    damage_one(world)

    world.node.lookout.refresh()

    assert store(world).read_roster() == raised


def test_a_copy_without_a_gpu_that_the_process_knows_is_of_no_use_to_it(world):
    """As beside a release that writes no copies."""
    before = world.node.lookout.roster
    store(world).write_roster(replace(before, gpus=before.gpus[:2]))
    store(world).path.write_text("{")

    world.node.lookout.refresh()

    assert store(world).read_roster() == before
