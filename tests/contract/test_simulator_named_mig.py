"""MIG devices and compute instances asked by name: indexes, names, sizes, places."""

from __future__ import annotations

import pytest
from contract.named_world import NamedWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.models import compute_placements, default_placements, list_models, load_model
from tesela.edge.simulator.targets import NamedAnswer

MODELS = [load_model(name) for name in list_models()]
PROFILES = [(model, profile) for model in MODELS for profile in model.profiles]
WITHIN = [
    pytest.param(profile, compute, id=f"{model.model}-{compute.name}{compute.profile_enum}-in-{profile.name}")
    for model, profile in PROFILES
    for compute in profile.compute_instances
]


@pytest.fixture
def world():
    return NamedWorld()


@pytest.fixture
def seven(world):
    """A GPU instance of seven slices without compute instances."""
    return world.nvml.create_gpu_instance(world.gpu, 0, Placement(start=0, size=8)).gi_id


def starts(world, profile_id, count):
    return [
        world.nvml.get_gpu_instance_by_id(
            world.gpu, world.ask("nvmlDeviceCreateGpuInstance", world.gpu, numbers=(profile_id,)).numbers[0]
        ).placement.start
        for _ in range(count)
    ]


# Indexes


def test_a_gpu_in_mig_mode_has_room_for_a_device_per_compute_slice(world):
    assert world.ask("nvmlDeviceGetMaxMigDeviceCount", world.gpu).numbers == (7,)


def test_a_gpu_out_of_mig_mode_has_room_for_none(world):
    assert world.ask("nvmlDeviceGetMaxMigDeviceCount", world.h100).numbers == (0,)


def test_devices_are_numbered_as_they_come(world):
    devices = [world.mig_device(start=start) for start in (5, 0, 3)]
    found = [world.ask("nvmlDeviceGetMigDeviceHandleByIndex", world.gpu, numbers=(i,)).numbers for i in range(3)]
    assert found == [(d.gi_id, d.ci_id) for d in devices]


def test_an_index_leads_back_to_itself(world):
    world.mig_device(start=0)
    device = world.mig_device(start=4)
    assert world.ask("nvmlDeviceGetIndex", world.gpu, gi=device.gi_id, ci=device.ci_id).numbers == (1,)


def test_a_destroyed_device_leaves_a_hole(world):
    first, second = world.mig_device(start=0), world.mig_device(start=1)
    world.destroy(first)
    found = world.ask("nvmlDeviceGetMigDeviceHandleByIndex", world.gpu, numbers=(1,)).numbers
    hole = world.code("nvmlDeviceGetMigDeviceHandleByIndex", world.gpu, numbers=(0,))
    assert (hole, found) == (codes.NOT_FOUND, (second.gi_id, second.ci_id))


def test_a_new_device_fills_the_hole(world):
    first = world.mig_device(start=0)
    world.mig_device(start=1)
    world.destroy(first)
    new = world.mig_device(start=6)
    assert world.ask("nvmlDeviceGetIndex", world.gpu, gi=new.gi_id, ci=new.ci_id).numbers == (0,)


@pytest.mark.parametrize("index", [-1, 7, 2**32])
def test_an_index_beyond_the_room_is_refused(world, index):
    code = world.code("nvmlDeviceGetMigDeviceHandleByIndex", world.gpu, numbers=(index,))
    assert code == codes.INVALID_ARGUMENT


def test_out_of_mig_mode_there_are_no_indexes(world):
    code = world.code("nvmlDeviceGetMigDeviceHandleByIndex", world.h100, numbers=(0,))
    assert code == codes.NOT_SUPPORTED


# What a MIG device is


def test_a_whole_device_is_named_by_its_profile(world):
    device = world.mig_device()
    name = world.ask("nvmlDeviceGetName", world.gpu, gi=device.gi_id, ci=device.ci_id).text
    assert name == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"


def test_a_part_is_named_by_both_profiles(world, seven):
    made = world.nvml.create_compute_instance(world.gpu, seven, 2)
    name = world.ask("nvmlDeviceGetName", world.gpu, gi=seven, ci=made.ci_id).text
    assert name == "NVIDIA A100-SXM4-40GB MIG 3c.7g.40gb"


def test_a_device_has_the_memory_of_its_profile(world):
    device = world.mig_device()
    memory = world.ask("nvmlDeviceGetMemoryInfo_v2", world.gpu, gi=device.gi_id, ci=device.ci_id).numbers
    assert memory == (4864 << 20, 0, 4864 << 20, 0)


def test_the_attributes_of_a_device(world):
    device = world.mig_device(start=4, profile="3g.20gb")
    attributes = world.ask("nvmlDeviceGetAttributes_v2", world.gpu, gi=device.gi_id, ci=device.ci_id).numbers
    assert attributes == (42, 3, 2, 0, 0, 0, 3, 3, 19968)


def test_a_part_shares_the_engines_and_the_memory(world, seven):
    made = world.nvml.create_compute_instance(world.gpu, seven, 0)
    attributes = world.ask("nvmlDeviceGetAttributes_v2", world.gpu, gi=seven, ci=made.ci_id).numbers
    assert attributes == (14, 7, 5, 0, 1, 1, 7, 1, 40192)


def test_a_device_has_the_bus_id_of_its_gpu(world):
    device = world.mig_device()
    assert world.ask("nvmlDeviceGetPciInfo_v3", world.gpu, gi=device.gi_id, ci=device.ci_id) == world.ask(
        "nvmlDeviceGetPciInfo_v3", world.gpu
    )


def test_a_device_has_its_share_of_bar_1(world):
    device = world.mig_device()
    total, _, used = world.ask("nvmlDeviceGetBAR1MemoryInfo", world.gpu, gi=device.gi_id, ci=device.ci_id).numbers
    assert (total, used) == (8191 << 20, 0)


def test_a_device_shows_its_own_processes(world):
    mine, other = world.mig_device(start=0), world.mig_device(start=1)
    for pid, device in ((7, mine), (8, other)):
        process = Process(pid=pid, gi_id=device.gi_id, ci_id=device.ci_id, memory_bytes=pid << 20)
        world.machine.add_process(world.gpu, process)
    shown = world.ask("nvmlDeviceGetComputeRunningProcesses_v3", world.gpu, gi=mine.gi_id, ci=mine.ci_id).numbers
    assert shown == (7, 7 << 20, mine.gi_id, mine.ci_id)


def test_the_compute_mode_is_the_devices(world):
    device, other = world.mig_device(start=0), world.mig_device(start=1)
    world.ask("nvmlDeviceSetComputeMode", world.gpu, gi=device.gi_id, ci=device.ci_id, numbers=(3,))
    modes = [world.ask("nvmlDeviceGetComputeMode", world.gpu, gi=d.gi_id, ci=d.ci_id).numbers for d in (device, other)]
    assert modes == [(3,), (0,)]


def test_a_gpu_in_mig_mode_has_no_compute_mode_to_set(world):
    assert world.code("nvmlDeviceSetComputeMode", world.gpu, numbers=(3,)) == codes.NOT_SUPPORTED


# GPU instances without a wanted placement


@pytest.mark.parametrize(
    ("profile_id", "order"), [(19, [6, 4, 5, 0, 1, 2, 3]), (14, [4, 0, 2]), (9, [4, 0]), (5, [0]), (0, [0])]
)
def test_the_driver_fills_an_a100_in_its_order(world, profile_id, order):
    assert starts(world, profile_id, len(order)) == order


def test_the_order_goes_round_what_is_taken(world):
    world.mig_device(start=6)
    assert starts(world, 19, 2) == [4, 5]


@pytest.mark.parametrize("model", MODELS, ids=[model.model for model in MODELS])
def test_the_order_of_a_profile_has_each_placement_once(model):
    assert all(
        sorted(default_placements(model, p), key=lambda x: x.start) == list(p.placements) for p in model.profiles
    )


def test_a_full_gpu_has_no_room(world):
    starts(world, 0, 1)
    code = world.code("nvmlDeviceCreateGpuInstance", world.gpu, numbers=(19,))
    assert code == codes.INSUFFICIENT_RESOURCES


@pytest.mark.parametrize("profile_id", [-1, 77])
def test_an_unknown_profile_is_refused(world, profile_id):
    assert world.code("nvmlDeviceCreateGpuInstance", world.gpu, numbers=(profile_id,)) == codes.INVALID_ARGUMENT


def test_without_mig_mode_nothing_is_created(world):
    assert world.code("nvmlDeviceCreateGpuInstance", world.h100, numbers=(19,)) == codes.NOT_SUPPORTED


def test_a_profile_is_told_by_its_id(world):
    told = world.ask("nvmlDeviceGetGpuInstanceProfileInfoByIdV", world.h100, numbers=(9,))
    assert told == NamedAnswer((9, 3, 2, 60, 3, 3, 0, 3, 0, 40448), "3g.40gb")


# Compute instances and their places


def test_a_compute_profile_shares_the_engines_of_its_gpu_instance(world, seven):
    told = world.ask("nvmlGpuInstanceGetComputeInstanceProfileInfoV", world.gpu, gi=seven, numbers=(2,))
    assert told == NamedAnswer((2, 3, 2, 42, 7, 5, 0, 1, 1), "3c.7g.40gb")


@pytest.mark.parametrize(("profile", "compute"), WITHIN)
def test_as_many_compute_instances_have_a_place_as_the_profile_allows(profile, compute):
    places = compute_placements(profile, compute)
    covered = [s for place in places for s in place.slices]
    assert (len(places), len(set(covered)), max(covered) < profile.compute_slices) == (
        compute.max_instances,
        len(covered),
        True,
    )


@pytest.mark.parametrize(("profile_id", "places"), [(0, range(7)), (1, [0, 2, 4]), (2, [0, 4]), (3, [0]), (4, [0])])
def test_the_places_in_seven_slices(world, seven, profile_id, places):
    function = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"
    told = world.ask(function, world.gpu, gi=seven, numbers=(profile_id,)).numbers
    assert list(told[::2]) == list(places)


def test_the_first_free_place_is_taken(world, seven):
    places = []
    for profile_id in (0, 1, 0):
        made = world.nvml.create_compute_instance(world.gpu, seven, profile_id)
        places.append(world.ask("nvmlComputeInstanceGetInfo_v2", world.gpu, gi=seven, ci=made.ci_id).numbers)
    assert places == [(0, 0, 1), (1, 2, 2), (0, 1, 1)]


def test_a_wanted_place_is_taken(world, seven):
    function = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
    (ci_id,) = world.ask(function, world.gpu, gi=seven, numbers=(1, 4, 2)).numbers
    assert world.ask("nvmlComputeInstanceGetInfo_v2", world.gpu, gi=seven, ci=ci_id).numbers == (1, 4, 2)


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ((1, 2, 2), codes.INSUFFICIENT_RESOURCES),
        ((1, 1, 2), codes.INVALID_ARGUMENT),
        ((1, 0, 3), codes.INVALID_ARGUMENT),
        ((1, -2, 2), codes.INVALID_ARGUMENT),
        ((6, 0, 6), codes.NOT_SUPPORTED),
        ((-1, 0, 1), codes.INVALID_ARGUMENT),
    ],
)
def test_a_place_that_cannot_be_had_is_refused(world, seven, numbers, code):
    function = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
    world.ask(function, world.gpu, gi=seven, numbers=(0, 3, 1))
    assert world.code(function, world.gpu, gi=seven, numbers=numbers) == code


def test_what_remains_is_what_can_be_made(world, seven):
    world.nvml.create_compute_instance(world.gpu, seven, 0)
    function = "nvmlGpuInstanceGetComputeInstanceRemainingCapacity"
    assert [world.ask(function, world.gpu, gi=seven, numbers=(p,)).numbers[0] for p in range(5)] == [6, 2, 1, 0, 0]


def test_a_compute_instance_is_found_by_its_id(world):
    device = world.mig_device()
    found = [
        world.code("nvmlGpuInstanceGetComputeInstanceById", world.gpu, gi=device.gi_id, numbers=(ci,)) for ci in (0, 1)
    ]
    assert found == [codes.SUCCESS, codes.NOT_FOUND]


@given(wanted=st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 4]), st.booleans()), max_size=12))
@settings(deadline=None, max_examples=60)
def test_no_compute_slice_has_two_owners(wanted):
    world = NamedWorld(build_machine("a100-40gb:mig*3"))
    gi_id = world.nvml.create_gpu_instance(world.gpu, 0, Placement(start=0, size=8)).gi_id
    live = []
    for profile_id, ends_first in wanted:
        if ends_first and live:
            world.nvml.destroy_compute_instance(world.gpu, gi_id, live.pop(0))
        try:
            live.append(world.nvml.create_compute_instance(world.gpu, gi_id, profile_id).ci_id)
        except NvmlError as error:
            if error.code != codes.INSUFFICIENT_RESOURCES:
                raise
    places = [world.ask("nvmlComputeInstanceGetInfo_v2", world.gpu, gi=gi_id, ci=ci).numbers for ci in live]
    covered = [s for _, start, size in places for s in range(start, start + size)]
    assert len(set(covered)) == len(covered)
