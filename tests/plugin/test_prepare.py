"""Preparing a claim: what is given, what is refused, and in which words."""

from __future__ import annotations

import json

import pytest
from tesela.core.model import ClaimRef, Refusal
from tesela.core.record import ClaimState
from tesela.core.shape import Policy, PolicyRule, Shape
from tesela.edge.kube.port import RESOURCE_CLAIMS

STATIC = Policy(rules=(PolicyRule(mode=Shape.STATIC),))


def cdi(world, ref):
    return json.loads(world.cdi_path(ref).read_text())


def environment(world, ref):
    document = cdi(world, ref)
    return {text for device in document["devices"] for text in device["containerEdits"]["env"]}


# What is given


def test_a_partition_is_made_on_demand(world):
    world.serve(world.claim("a", world.partition(0, "1g.5gb", 6)))

    assert [instance.profile for instance in world.instances(0)] == ["1g.5gb"]


def test_the_workload_learns_the_uuid_of_its_partition(world):
    ref = world.claim("a", world.partition(0, "3g.20gb", 4))

    record = world.serve(ref)

    uuid = record.devices[0].current.mig_uuid
    assert environment(world, ref) == {f"TESELA_A_R0_UUIDS={uuid}", "TESELA_A_R0_PROFILES=3g.20gb"}


def test_a_whole_gpu_is_given_as_it_is(world):
    ref = world.claim("a", "gpu-1")

    world.serve(ref)

    assert f"TESELA_A_R0_UUIDS={world.uuid(1)}" in environment(world, ref)


def test_the_kubelet_is_told_pool_device_and_cdi_id(world):
    ref = world.claim("a", "gpu-1")

    (answer,) = world.prepare(ref)

    assert (answer.request_names, answer.pool_name, answer.device_name, answer.cdi_device_ids) == (
        ("r0",),
        "node-1",
        "gpu-1",
        (f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu-1",),
    )


def test_preparing_twice_answers_alike_and_makes_one_partition(world):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))

    first, second = world.prepare(ref), world.prepare(ref)

    assert (first, len(world.instances(0))) == (second, 1)


def test_a_restarted_driver_answers_alike(world):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    first = world.prepare(ref)
    world.start()

    assert world.prepare(ref) == first


def test_a_prepared_claim_is_answered_while_the_api_is_away(world):
    ref = world.claim("a", "gpu-1")
    first = world.prepare(ref)
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)

    assert world.prepare(ref) == first


def test_a_shared_claim_is_prepared_once_for_both_pods(world):
    """The kubelet calls for each pod, and unprepares when the last has gone."""
    ref = world.claim("a", world.partition(0, "2g.10gb", 0))
    world.serve(ref)
    world.serve(ref)
    world.unprepare(ref)

    assert world.leftovers() == []


def test_one_claim_may_hold_partitions_of_several_gpus_and_a_whole_one(world):
    devices = (world.partition(0, "1g.5gb", 0), world.partition(0, "3g.20gb", 4), world.partition(2, "1g.10gb", 1))

    ref = world.claim("a", *devices, "gpu-3")

    assert [device.device_name for device in world.prepare(ref)] == [*devices, "gpu-3"]


def test_several_claims_of_one_pod_stand_side_by_side(world):
    refs = [world.claim(f"c{start}", world.partition(0, "1g.5gb", start)) for start in range(7)]

    for ref in refs:
        world.serve(ref)

    assert len(world.instances(0)) == 7


def test_results_of_other_drivers_are_skipped(world):
    ours = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1"}
    theirs = {"request": "nic", "driver": "nic.example.com", "pool": "elsewhere", "device": "nic-0"}

    answer = world.prepare(world.allocate("a", [theirs, ours]))

    assert [device.device_name for device in answer] == ["gpu-1"]


def test_a_first_available_request_answers_under_its_own_name(world):
    device = world.partition(0, "1g.5gb", 6)
    result = {"request": "core/small", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device}

    (answer,) = world.prepare(world.allocate("a", [result]))

    assert answer.request_names == ("core",)


def test_a_partition_that_went_by_hand_is_made_again(world):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    before = world.serve(ref).devices[0].current.mig_uuid
    world.reset(0)

    after = world.serve(ref).devices[0].current.mig_uuid

    assert after not in {None, before}


# Partitions made by somebody else


def test_a_static_partition_is_handed_out_and_left_when_the_claim_ends(build):
    world = build("a100-40gb:mig", policy=STATIC)
    world.make_foreign(0, "2g.10gb", 2)
    ref = world.claim("a", world.partition(0, "2g.10gb", 2))
    world.serve(ref)
    world.unprepare(ref)

    assert [instance.profile for instance in world.instances(0)] == ["2g.10gb"]


def test_a_static_partition_that_is_not_there_is_refused(build):
    world = build("a100-40gb:mig", policy=STATIC)

    sentence = world.refuse(world.claim("a", world.partition(0, "2g.10gb", 2)))

    assert "set to static partitions and this one does not exist" in sentence


def test_a_foreign_partition_in_the_way_is_named(world):
    gi_id = world.make_foreign(0, "2g.10gb", 4)

    sentence = world.refuse(world.claim("a", world.partition(0, "3g.20gb", 4)))

    assert f"GPU instance {gi_id} of GPU {world.uuid(0)} lies in memory slices 4 to 5" in sentence


def test_a_foreign_partition_keeps_the_gpu_from_being_given_whole(world):
    world.set_mig(2, on=True)
    world.make_foreign(2, "1g.10gb", 0)

    assert "was not made by Tesela" in world.refuse(world.claim("a", "gpu-2"))


# Admin access


def test_admin_access_sees_a_partition_that_another_claim_holds(world):
    device = world.partition(0, "1g.5gb", 6)
    owner = world.serve(world.claim("owner", device))

    watcher = world.serve(world.claim("watcher", device, adminAccess=True))

    assert watcher.devices[0].current.mig_uuid == owner.devices[0].current.mig_uuid


def test_the_end_of_an_admin_claim_destroys_nothing(world):
    device = world.partition(0, "1g.5gb", 6)
    world.serve(world.claim("owner", device))
    watcher = world.claim("watcher", device, adminAccess=True)
    world.serve(watcher)
    world.unprepare(watcher)

    assert len(world.instances(0)) == 1


def test_admin_access_to_a_partition_that_does_not_live_is_refused(world):
    watcher = world.claim("watcher", world.partition(0, "1g.5gb", 6), adminAccess=True)

    assert "admin access never makes one" in world.refuse(watcher)


def test_admin_access_to_a_gpu_that_is_cut_up_changes_nothing(world):
    world.serve(world.claim("owner", world.partition(2, "1g.10gb", 6)))

    world.serve(world.claim("watcher", "gpu-2", adminAccess=True))

    assert world.machine.gpu("2").mig_current == 1


# What is refused


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (("1g.5gb", 4), ("1g.5gb", 4)),
        (("1g.5gb", 4), ("3g.20gb", 4)),
        (("3g.20gb", 4), ("1g.5gb", 6)),
        (("1g.5gb", 4), ("7g.40gb", 0)),
    ],
)
def test_a_device_that_overlaps_a_held_one_is_refused_naming_the_holder(world, held, wanted):
    world.serve(world.claim("holder", world.partition(0, *held)))

    sentence = world.refuse(world.claim("late", world.partition(0, *wanted)))

    assert "still held by claim default/holder" in sentence


def test_a_device_is_free_once_its_claim_is_unprepared(world):
    holder = world.claim("holder", world.partition(0, "3g.20gb", 4))
    late = world.claim("late", world.partition(0, "1g.5gb", 4))
    world.serve(holder)
    world.refuse(late)
    world.unprepare(holder)

    assert not isinstance(world.prepare(late), Refusal)


def test_a_whole_gpu_keeps_its_partitions_away(world):
    world.serve(world.claim("holder", "gpu-2"))

    sentence = world.refuse(world.claim("late", world.partition(2, "1g.10gb", 0)))

    assert "gpu-2 on the same GPU is still held by claim default/holder" in sentence


def test_a_partition_keeps_the_whole_gpu_away(world):
    world.serve(world.claim("holder", world.partition(2, "1g.10gb", 0)))

    assert "still held by claim default/holder" in world.refuse(world.claim("late", "gpu-2"))


def test_two_devices_of_one_claim_that_exclude_each_other_are_refused(world):
    sentence = world.refuse(world.claim("a", world.partition(0, "3g.20gb", 4), world.partition(0, "1g.5gb", 6)))

    assert "the two exclude each other" in sentence


def test_an_instance_id_still_granted_to_another_claim_is_not_given_again(world):
    """The other claim's container may open what has this id (its capability minor is a function of it)."""
    gi_id = world.serve(world.claim("holder", world.partition(0, "1g.5gb", 0))).devices[0].current.gi_id
    world.destroy_by_hand(0, gi_id)
    world.machine.force_gi_id("0", gi_id)

    sentence = world.refuse(world.claim("late", world.partition(0, "1g.5gb", 5)))

    assert (f"id {gi_id} of GPU" in sentence, "default/holder" in sentence, world.instances(0)) == (True, True, ())


def test_an_instance_id_stays_granted_over_a_restart_of_the_driver(world):
    gi_id = world.serve(world.claim("holder", world.partition(0, "1g.5gb", 0))).devices[0].current.gi_id
    world.destroy_by_hand(0, gi_id)
    world.start()
    world.start()
    world.machine.force_gi_id("0", gi_id)

    assert "still granted" in world.refuse(world.claim("late", world.partition(0, "1g.5gb", 5)))


UNKNOWN = ["gpu-9", "gpu-1-mig-1g5gb-19-9", "gpu-0-mig-9g99gb-77-0", "tpu-0", "gpu-01"]


@pytest.mark.parametrize("device", UNKNOWN)
def test_an_unknown_device_is_refused_by_name(world, device):
    sentence = world.refuse(world.claim("a", device))

    assert f"claim default/a: device {device}: " in sentence


def test_a_device_of_another_pool_is_refused(world):
    sentence = world.refuse(world.claim("a", "gpu-1", pool="node-2"))

    assert "allocated from pool node-2, and this node's pool is node-1" in sentence


def test_a_gpu_that_is_gone_is_refused(world):
    world.machine.lose("1", absent=True)
    world.look()

    assert "does not answer any more" in world.refuse(world.claim("a", "gpu-1"))


def test_a_claim_without_allocation_is_refused(world):
    assert "has no allocation" in world.refuse(world.allocate("a", None))


def test_a_claim_that_was_deleted_is_refused(world):
    ref = ClaimRef(namespace="default", name="gone", uid="8f1e4c1a-0000-4d7e-9a57-7e5e1a000001")

    assert "is not in the API any more" in world.refuse(ref)


def test_a_claim_made_again_under_the_same_name_is_refused(world):
    now = world.claim("a", "gpu-1")
    before = ClaimRef(namespace="default", name="a", uid="8f1e4c1a-0000-4d7e-9a57-7e5e1a000001")

    sentence = world.refuse(before)

    assert f"has UID {now.uid}, and the kubelet asked for {before.uid}" in sentence


def test_a_refused_claim_leaves_nothing(world):
    world.refuse(world.claim("a", world.partition(0, "3g.20gb", 4), "gpu-9"))

    assert (world.leftovers(), list((world.state_dir / "locks").glob("claim-*"))) == ([], [])


def test_a_claim_that_nvml_refuses_half_way_leaves_nothing(world):
    world.make_foreign(0, "1g.5gb+me", 6)  # the only one of its profile, so the second device fails at NVML

    ref = world.claim("a", world.partition(0, "1g.5gb", 0), world.partition(0, "1g.5gb+me", 1))

    assert ("Insufficient Resources" in world.refuse(ref), world.leftovers()) == (True, [])


def test_a_record_is_prepared_when_the_answer_is_given(world):
    ref = world.claim("a", "gpu-1")

    assert world.serve(ref).state is ClaimState.PREPARED
