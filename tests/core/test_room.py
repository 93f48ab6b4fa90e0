"""What could still be handed out: the largest device of a GPU, and the states of published ones."""

from __future__ import annotations

from dataclasses import replace

from gpu_models import GIB, a100, h100, known, roster, t4
from slice_world import holding, state
from tesela.core.model import LivePartition, Placement, Shape
from tesela.core.room import DeviceStanding, Room, count_devices, find_largest
from tesela.core.shape import DEFAULT_POLICY, Policy, PolicyRule
from tesela.core.slices.pool import render_pool
from tesela.core.slices.state import ApiAbilities, Fence

MIB = 1 << 20


def room_on(gpu, *records, fences=(), policy=DEFAULT_POLICY, live=(), present=True):
    return find_largest(known(gpu, present=present), policy, records=records, fences=fences, live=live)


def named(found: Room | None):
    return None if found is None else (found.profile, found.memory_bytes)


def fence(gpu, placement=None):
    return Fence(gpu_uuid=gpu.uuid, placement=placement, key="gpu.nvidia.com/xid", value="xid-48")


def test_an_empty_gpu_has_room_for_its_largest_profile():
    assert named(room_on(a100())) == ("7g.40gb", 40192 * MIB)


def test_one_small_partition_leaves_the_other_half():
    assert named(room_on(a100(), holding(a100(), "gpu-0-mig-1g5gb-19-0"))) == ("3g.20gb", 19968 * MIB)


def test_in_the_right_half_it_leaves_the_larger_half():
    assert named(room_on(a100(), holding(a100(), "gpu-0-mig-1g5gb-19-6"))) == ("4g.20gb", 19968 * MIB)


def test_engines_that_are_used_up_count():
    both = (
        holding(a100(), "gpu-0-mig-3g20gb-9-0", claim="one"),
        holding(a100(), "gpu-0-mig-3g20gb-9-4", claim="two"),
    )

    assert named(room_on(a100(), *both)) == ("", 0)


def test_a_gpu_that_is_held_whole_has_no_room():
    assert named(room_on(h100(), holding(h100(), "gpu-0"))) == ("", 0)


def test_admin_access_takes_no_room():
    assert named(room_on(h100(), holding(h100(), "gpu-0", admin_access=True))) == ("7g.80gb", 81152 * MIB)


def test_a_fence_around_the_gpu_leaves_nothing():
    assert named(room_on(a100(), fences=[fence(a100())])) == ("", 0)


def test_a_fence_around_one_placement_leaves_the_rest():
    assert named(room_on(a100(), fences=[fence(a100(), Placement(start=0, size=1))])) == ("3g.20gb", 19968 * MIB)


def test_a_fence_of_another_gpu_is_nothing():
    assert named(room_on(a100(), fences=[fence(a100(1))])) == ("7g.40gb", 40192 * MIB)


def test_a_gone_gpu_has_no_room():
    assert named(room_on(a100(), present=False)) == ("", 0)


def test_a_gpu_without_mig_is_given_whole():
    assert named(room_on(t4())) == ("", 15360 * MIB)


def test_without_a_figure_for_memory_nothing_is_said():
    assert room_on(t4(memory_bytes=None)) is None


def test_an_ignored_gpu_is_left_out():
    ignored = Policy(rules=(PolicyRule(mode=Shape.IGNORE),))

    assert room_on(a100(), policy=ignored) is None


def test_the_policys_profiles_bound_it():
    small = Policy(rules=(PolicyRule(mode=Shape.ON_DEMAND, allowed_profiles=("1g.5gb", "2g.10gb")),))

    assert named(room_on(a100(), policy=small)) == ("2g.10gb", 9856 * MIB)


def test_static_partitions_are_those_that_live_and_nobody_holds():
    static = Policy(rules=(PolicyRule(mode=Shape.STATIC),))
    facts = {"gpu_uuid": a100().uuid, "ci_id": 0}
    live = [
        LivePartition(profile_id=9, placement=Placement(start=0, size=4), gi_id=1, mig_uuid="MIG-1", **facts),
        LivePartition(profile_id=14, placement=Placement(start=4, size=2), gi_id=2, mig_uuid="MIG-2", **facts),
    ]

    found = room_on(a100(), holding(a100(), "gpu-0-mig-3g20gb-9-0"), policy=static, live=live)

    assert named(found) == ("2g.10gb", 9856 * MIB)


def pool_of(*gpus, **fields):
    return render_pool(state(roster(*gpus), **fields), ApiAbilities())


def counted(pool, *records):
    totals = dict.fromkeys(DeviceStanding, 0)
    for kind, number in count_devices(pool, records).items():
        totals[kind.state] += number
    return totals


def test_every_published_device_is_counted_once():
    pool = pool_of(a100(), h100(1), t4(2))

    published = sum(len(content.devices) for content in pool.slices)

    assert sum(count_devices(pool, ()).values()) == published


def test_a_claim_allocates_one_and_excludes_what_it_overlaps():
    assert counted(pool_of(a100()), holding(a100(), "gpu-0-mig-7g40gb-0-0")) == {
        DeviceStanding.FREE: 0,
        DeviceStanding.ALLOCATED: 1,
        DeviceStanding.TAINTED: 0,
        DeviceStanding.EXCLUDED: sum(len(p.placements) for p in a100().profiles) - 1,
    }


def test_a_claim_excludes_nothing_on_another_gpu():
    pool = pool_of(t4(), t4(1))

    assert counted(pool, holding(t4(), "gpu-0"))[DeviceStanding.EXCLUDED] == 0


def test_a_tainted_device_is_not_free():
    pool = pool_of(t4(), fences=(fence(t4()),))

    assert counted(pool)[DeviceStanding.TAINTED] == 1


def test_admin_access_allocates_nothing():
    assert counted(pool_of(t4()), holding(t4(), "gpu-0", admin_access=True))[DeviceStanding.ALLOCATED] == 0


def test_models_and_profiles_tell_kinds_apart():
    kinds = count_devices(pool_of(t4(), replace(t4(1), memory_bytes=80 * GIB, product_name="Another")), ())

    assert {(kind.model, kind.profile) for kind in kinds} == {("Tesla T4", ""), ("Another", "")}
