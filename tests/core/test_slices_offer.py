from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from gpu_models import PROFILES, a100, h100, known, live, roster, t4
from hypothesis import given
from hypothesis import strategies as st
from slice_world import counters_of, devices_of, holding, state, taints_of
from tesela.core.geometry import exclude, plan_partitions
from tesela.core.health.model import Reach
from tesela.core.model import Placement, Shape
from tesela.core.naming import render_partition_name
from tesela.core.quantity import parse_quantity
from tesela.core.shape import Policy, PolicyRule
from tesela.core.slices.pool import render_pool
from tesela.core.slices.state import ApiAbilities, Fence

THREE_AT_4 = "gpu-0-mig-3g20gb-9-4"
ONE_AT_6 = "gpu-0-mig-1g5gb-19-6"
WITHDRAWN = ("gpu.nvidia.com/withdrawn", "held-by-a-claim")


def policy(mode, **fields):
    return Policy(rules=(PolicyRule(mode=mode, **fields),))


def values(counters):
    return {name: parse_quantity(one["value"]) for name, one in counters.items()}


def consumed(device):
    return values(device["consumesCounters"][0]["counters"])


def fits(devices, counters):
    totals = {name: sum(consumed(device).get(name, parse_quantity(0)).nanos for device in devices) for name in counters}
    return all(total <= counters[name].nanos for name, total in totals.items())


def test_an_a100_in_mig_mode_publishes_25_partitions():
    assert len(devices_of(state(roster(a100())))) == 25


def test_an_h100_publishes_25_partitions_and_the_whole_gpu_last():
    names = list(devices_of(state(roster(h100()))))

    assert (len(names), names[0], names[-1]) == (26, "gpu-0-mig-1g10gb-19-6", "gpu-0")


def test_gpus_follow_the_nvml_index_and_names_follow_the_roster():
    one = replace(known(t4(0)), number=5, gpu=replace(t4(0), index=1))
    other = replace(known(t4(1)), number=7, gpu=replace(t4(1), index=0))

    assert list(devices_of(state(roster(one, other)))) == ["gpu-7", "gpu-5"]


def test_an_a100_counter_set_is_nvidias():
    (counters,) = counters_of(state(roster(a100()))).values()

    expected = {
        "memory": "40192Mi",
        "multiprocessors": "98",
        "copy-engines": "7",
        "decoders": "5",
        "encoders": "0",
        "jpeg-engines": "1",
        "ofa-engines": "1",
        **{f"memory-slice-{index}": "1" for index in range(8)},
    }
    assert {name: one["value"] for name, one in counters.items()} == expected


def test_the_whole_gpu_takes_every_counter():
    pool = state(roster(h100()))

    assert consumed(devices_of(pool)["gpu-0"]) == values(counters_of(pool)["gpu-0-counter-set"])


@pytest.mark.parametrize("gpu", [t4(), a100(0, mig_enabled=False)])
def test_a_gpu_with_nothing_to_compete_for_has_no_counter_set(gpu):
    assert counters_of(state(roster(gpu))) == {}


@pytest.mark.parametrize("model", PROFILES)
@given(data=st.data())
def test_every_packing_that_the_hardware_takes_fits_the_counters(model, data):
    gpu = h100(0, profiles=PROFILES[model])
    pool = state(roster(gpu))
    order = data.draw(st.permutations(plan_partitions(gpu)))
    packing = []
    engines = ("decoders", "encoders", "jpeg_engines", "ofa_engines")
    limits = [max(getattr(p, engine) for p in gpu.profiles) for engine in engines]
    for partition in order:
        together = [*packing, partition]
        takes = [sum(getattr(one.profile, engine) for one in together) for engine in engines]
        enough = all(taken <= limit for taken, limit in zip(takes, limits, strict=True))
        if enough and not any(exclude(partition, other) for other in packing):
            packing.append(partition)
    names = [render_partition_name(0, one.profile, one.placement) for one in packing]

    devices = devices_of(pool)

    assert fits([devices[name] for name in names], values(counters_of(pool)["gpu-0-counter-set"]))


@pytest.mark.parametrize("model", PROFILES)
def test_what_excludes_each_other_does_not_fit_the_counters(model):
    gpu = h100(0, profiles=PROFILES[model])
    pool = state(roster(gpu))
    devices = devices_of(pool)
    counters = values(counters_of(pool)["gpu-0-counter-set"])
    pairs = [
        (render_partition_name(0, one.profile, one.placement), render_partition_name(0, other.profile, other.placement))
        for one, other in combinations(plan_partitions(gpu), 2)
        if exclude(one, other)
    ]

    assert [pair for pair in pairs if fits([devices[pair[0]], devices[pair[1]]], counters)] == []


def test_a_policy_filters_profiles():
    only = policy(Shape.ON_DEMAND, allowed_profiles=("3g.20gb",))

    assert list(devices_of(state(roster(a100()), policy=only))) == [THREE_AT_4, "gpu-0-mig-3g20gb-9-0"]


def test_an_ignored_gpu_publishes_nothing():
    assert list(devices_of(state(roster(a100(0), t4(1)), policy=policy(Shape.IGNORE, number=0)))) == ["gpu-1"]


def test_static_publishes_what_lives():
    gpu = a100()
    found = state(roster(gpu), policy=policy(Shape.STATIC), live=(live(gpu, "3g.20gb", 4), live(gpu, "1g.5gb", 0)))

    assert list(devices_of(found)) == ["gpu-0-mig-1g5gb-19-0", THREE_AT_4]


def test_static_does_not_publish_an_instance_without_its_mig_device():
    gpu = a100()
    bare = replace(live(gpu, "3g.20gb", 4), ci_id=None, mig_uuid=None)

    assert devices_of(state(roster(gpu), policy=policy(Shape.STATIC), live=(bare,))) == {}


def test_a_gone_gpu_stays_published_tainted():
    gone = known(h100(), present=False)

    taints = [taints_of(device) for device in devices_of(state(roster(gone))).values()]

    assert taints == [{("gpu.nvidia.com/gone", "")}] * 26


def test_a_gone_gpu_keeps_its_counters():
    assert counters_of(state(roster(known(h100(), present=False)))) == counters_of(state(roster(h100())))


def test_a_foreign_partition_fences_what_overlaps_it():
    gpu = h100()

    devices = devices_of(state(roster(gpu), live=(live(gpu, "4g.40gb", 0),)))

    fenced = {
        name for name, device in devices.items() if ("gpu.nvidia.com/foreign", "4g.40gb-at-0") in taints_of(device)
    }
    free = {device["attributes"]["placementStart"]["int"] for name, device in devices.items() if name not in fenced}
    assert ("gpu-0" in fenced, free) == (True, {4, 5, 6})


def test_a_partition_that_a_record_knows_fences_nothing():
    gpu = a100()
    ours = state(roster(gpu), live=(live(gpu, "3g.20gb", 4),), records=(holding(gpu, THREE_AT_4),))

    assert [device for device in devices_of(ours).values() if device.get("taints")] == []


def test_a_fence_on_a_placement_taints_what_touches_it_alone():
    gpu = a100()
    fence = Fence(gpu_uuid=gpu.uuid, placement=Placement(start=6, size=1), key="gpu.nvidia.com/xid", value="48")

    devices = devices_of(state(roster(gpu), fences=(fence,)))

    assert {name for name, device in devices.items() if device.get("taints")} == {
        "gpu-0-mig-1g10gb-15-6",
        "gpu-0-mig-1g5gb-19-6",
        "gpu-0-mig-1g5gb-me-20-6",
        "gpu-0-mig-3g20gb-9-4",
        "gpu-0-mig-7g40gb-0-0",
    }


@pytest.mark.parametrize(
    ("shape", "fenced"),
    [
        (Reach.ALL, {True, False}),
        (Reach.WHOLE, {True}),
        (Reach.PARTITIONS, {False}),
    ],
)
def test_a_fence_of_one_shape_leaves_the_other_alone(shape, fenced):
    gpu = h100()
    fence = Fence(gpu_uuid=gpu.uuid, placement=None, key="gpu.nvidia.com/mode-held", value="x", shape=shape)

    devices = devices_of(state(roster(gpu), fences=(fence,)))

    assert {name == "gpu-0" for name, device in devices.items() if device.get("taints")} == fenced


def _fence(gpu, key, effect="NoSchedule", value="x"):
    return Fence(gpu_uuid=gpu.uuid, placement=None, key=f"gpu.nvidia.com/{key}", value=value, effect=effect)


def test_of_fences_with_one_key_and_effect_the_first_shows():
    gpu = t4()

    devices = devices_of(state(roster(gpu), fences=(_fence(gpu, "xid", value="48"), _fence(gpu, "xid", value="92"))))

    assert taints_of(devices["gpu-0"]) == {("gpu.nvidia.com/xid", "48")}


@pytest.mark.parametrize(("split", "most"), [(True, 16), (False, 4)])
def test_of_more_taints_than_the_api_takes_those_that_evict_are_kept(split, most):
    gpu = t4()
    fences = (*(_fence(gpu, f"a-{number}") for number in range(20)), _fence(gpu, "z", "NoExecute"))

    devices = devices_of(state(roster(gpu), fences=fences), split=split)

    effects = [taint["effect"] for taint in devices["gpu-0"]["taints"]]
    assert (len(effects), effects.count("NoExecute")) == (most, 1)


def test_fences_never_lower_counters():
    gpu = a100()
    fence = Fence(gpu_uuid=gpu.uuid, placement=None, key="gpu.nvidia.com/xid", value="48")

    assert counters_of(state(roster(gpu), fences=(fence,))) == counters_of(state(roster(gpu)))


def test_a_held_whole_gpu_stays_published_when_mig_was_switched_on():
    gpu = a100()

    devices = devices_of(state(roster(gpu), records=(holding(gpu, "gpu-0"),)))

    assert (list(devices)[-1], taints_of(devices["gpu-0"]), len(devices)) == ("gpu-0", {WITHDRAWN}, 26)


def test_a_held_partition_excludes_the_whole_gpu_after_mig_was_switched_off():
    gpu = a100(0, mig_enabled=False)
    pool = state(roster(gpu), records=(holding(gpu, ONE_AT_6),))

    devices = devices_of(pool)

    counters = values(counters_of(pool)["gpu-0-counter-set"])
    assert (list(devices), taints_of(devices[ONE_AT_6])) == ([ONE_AT_6, "gpu-0"], {WITHDRAWN})
    assert not fits(devices.values(), counters)


def test_a_held_partition_excludes_the_whole_gpu_when_the_driver_no_longer_knows_its_profile():
    before, after = h100(), h100(0, profiles=())
    pool = state(roster(after), records=(holding(before, "gpu-0-mig-1g10gb-19-6"),))

    devices = devices_of(pool)

    assert (len(devices), fits(devices.values(), values(counters_of(pool)["gpu-0-counter-set"]))) == (2, False)


def test_admin_access_holds_nothing():
    gpu = a100()

    assert len(devices_of(state(roster(gpu), records=(holding(gpu, "gpu-0", admin_access=True),)))) == 25


def test_without_counters_a_gpu_that_can_be_cut_is_whole():
    assert list(devices_of(state(roster(h100(0), t4(1))), counters=False)) == ["gpu-0", "gpu-1"]


def test_without_counters_what_claims_hold_stays_and_what_it_excludes_goes():
    gpu = h100()
    pool = state(roster(gpu), records=(holding(gpu, "gpu-0-mig-1g10gb-19-6"),))

    assert list(devices_of(pool, counters=False)) == ["gpu-0-mig-1g10gb-19-6"]


def test_without_counters_static_partitions_stay():
    gpu = a100()
    pool = state(roster(gpu), policy=policy(Shape.STATIC), live=(live(gpu, "3g.20gb", 4), live(gpu, "1g.5gb", 0)))

    assert len(devices_of(pool, counters=False)) == 2


@pytest.mark.parametrize("gpu", [a100(), h100(), a100(0, mig_enabled=False)])
def test_without_counters_nothing_names_a_counter(gpu):
    pool = state(roster(gpu))

    consumers = [device for device in devices_of(pool, counters=False).values() if "consumesCounters" in device]

    assert (consumers, counters_of(pool, counters=False)) == ([], {})


def test_without_taints_what_needs_one_is_left_out_unless_held():
    gone = known(h100(0), present=False)
    held = "gpu-0-mig-1g10gb-19-6"
    pool = state(roster(gone, t4(1)), records=(holding(gone.gpu, held),))

    devices = devices_of(pool, taints=False)

    assert [(name, device.get("taints")) for name, device in devices.items()] == [(held, None), ("gpu-1", None)]


def remarks(gpus, *allowed):
    only = policy(Shape.ON_DEMAND, allowed_profiles=allowed)
    return render_pool(state(gpus, policy=only), ApiAbilities()).remarks


def test_a_misspelt_profile_is_named_beside_those_that_the_gpu_has():
    (remark,) = remarks(roster(a100(0, mig_enabled=True)), "1g.5bg", "3g.20gb")

    assert remark == (
        "gpu-0 (NVIDIA A100-SXM4-40GB) has no profile 1g.5bg, which its policy allows; it has 1g.10gb, 1g.5gb, "
        "1g.5gb+me, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb: correct allowedProfiles"
    )


def test_a_gpu_that_has_none_of_the_allowed_profiles_is_named():
    assert ["gpu-1" in remark for remark in remarks(roster(a100(0, mig_enabled=True), h100(1)), "3g.20gb")] == [True]


def test_profiles_for_several_models_are_no_error():
    assert remarks(roster(a100(0, mig_enabled=True), h100(1)), "3g.20gb", "3g.40gb") == ()


def test_no_counter_is_below_what_all_held_partitions_consume_together():
    """Here no profile is as large as both claims: one negative counter would block every GPU of the node."""
    threes = tuple(profile for profile in a100(0).profiles if profile.name == "3g.20gb")
    gpu = a100(0, mig_enabled=True, profiles=threes)
    claims = [holding(gpu, f"gpu-0-mig-3g20gb-9-{start}", claim=f"claim-{start}") for start in (0, 4)]
    pool = state(roster(gpu), records=tuple(claims))

    counters = values(counters_of(pool)["gpu-0-counter-set"])

    assert fits([devices_of(pool)[f"gpu-0-mig-3g20gb-9-{start}"] for start in (0, 4)], counters)
