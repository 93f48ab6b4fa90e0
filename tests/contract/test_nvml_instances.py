"""The contract of the NVML port, second part: profiles, placements, GPU and compute instances, their processes."""

from __future__ import annotations

import pytest
from contract.nvml_backends import A100, BACKENDS, H100, PRO, World, at, code_of, open_initialised, open_world
from tesela.core.errors import DocumentError, NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import ProcessInfo
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.models import list_models

ONE_G, ONE_G_ME, TWO_G, THREE_G, FOUR_G, SEVEN_G = 19, 20, 14, 9, 5, 0


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def world(backend):
    with open_initialised(backend) as world:
        yield world


# Profiles and placements


def test_a_profile_tells_everything(world):
    info = world.nvml.get_gpu_instance_profile_info(world.gpu(H100), 2)
    counts = (info.copy_engine_count, info.decoder_count, info.encoder_count, info.jpeg_count, info.ofa_count)
    assert (info.profile_id, info.name, info.slice_count, info.instance_count, info.multiprocessor_count, counts) == (
        THREE_G,
        "3g.40gb",
        3,
        2,
        60,
        (3, 3, 0, 3, 0),
    )


def test_a_profiles_memory_is_what_drivers_report_not_a_rounded_share(world):
    assert world.nvml.get_gpu_instance_profile_info(world.gpu(A100), 0).memory_size_mib == 4864


def test_profiles_can_be_asked_with_mig_off(world):
    assert world.nvml.get_gpu_instance_profile_info(world.gpu(H100), 0).name == "1g.10gb"


def test_a_profile_that_the_gpu_lacks_is_not_supported(world):
    assert code_of(world.nvml.get_gpu_instance_profile_info, world.gpu(A100), 10) == codes.NOT_SUPPORTED


@pytest.mark.parametrize("profile_enum", [-1, codes.GPU_INSTANCE_PROFILE_COUNT])
def test_a_profile_enum_that_nvml_lacks_is_an_invalid_argument(world, profile_enum):
    answer = code_of(world.nvml.get_gpu_instance_profile_info, world.gpu(A100), profile_enum)
    assert answer == codes.INVALID_ARGUMENT


def test_placements_are_counted_in_memory_slices(world):
    assert world.nvml.get_gpu_instance_possible_placements(world.gpu(PRO), 14) == (
        at(0, 3),
        at(3, 3),
        at(6, 3),
        at(9, 3),
    )


def test_possible_placements_include_the_taken_ones(world):
    world.nvml.create_gpu_instance(world.gpu(A100), THREE_G, at(0, 4))
    assert world.nvml.get_gpu_instance_possible_placements(world.gpu(A100), THREE_G) == (at(0, 4), at(4, 4))


@pytest.mark.parametrize(("profile_id", "left"), [(ONE_G, 3), (TWO_G, 1), (THREE_G, 1), (SEVEN_G, 0)])
def test_remaining_capacity_counts_what_still_fits(world, profile_id, left):
    world.nvml.create_gpu_instance(world.gpu(A100), THREE_G, at(0, 4))
    assert world.nvml.get_gpu_instance_remaining_capacity(world.gpu(A100), profile_id) == left


def test_remaining_capacity_needs_mig(world):
    answer = code_of(world.nvml.get_gpu_instance_remaining_capacity, world.gpu(H100), ONE_G)
    assert answer == codes.NOT_SUPPORTED


# GPU instances


def test_an_instance_lies_where_it_was_asked_for(world):
    made = world.nvml.create_gpu_instance(world.gpu(A100), ONE_G, at(6, 1))
    assert world.nvml.get_gpu_instance_by_id(world.gpu(A100), made.gi_id).placement == at(6, 1)


def test_the_instances_of_a_profile_are_listed(world):
    made = {world.nvml.create_gpu_instance(world.gpu(A100), ONE_G, at(start, 1)) for start in (0, 3)}
    assert set(world.nvml.get_gpu_instances(world.gpu(A100), ONE_G)) == made


def test_instances_of_other_profiles_are_not_listed(world):
    world.nvml.create_gpu_instance(world.gpu(A100), ONE_G, at(0, 1))
    assert world.nvml.get_gpu_instances(world.gpu(A100), TWO_G) == ()


def test_ids_are_reused(world):
    first = world.nvml.create_gpu_instance(world.gpu(A100), ONE_G, at(6, 1))
    world.nvml.destroy_gpu_instance(world.gpu(A100), first.gi_id)
    assert world.nvml.create_gpu_instance(world.gpu(A100), ONE_G, at(6, 1)).gi_id == first.gi_id


@pytest.mark.parametrize(
    ("profile_id", "placement", "code"),
    [
        (ONE_G, at(4, 1), codes.INSUFFICIENT_RESOURCES),  # the slice is taken
        (FOUR_G, at(0, 4), codes.INSUFFICIENT_RESOURCES),  # likewise, in part
        (ONE_G_ME, at(0, 1), codes.INSUFFICIENT_RESOURCES),  # one +me per GPU
        (ONE_G, at(7, 1), codes.INVALID_ARGUMENT),  # slot 7 is never a start
        (TWO_G, at(1, 2), codes.INVALID_ARGUMENT),
        (ONE_G, at(0, 2), codes.INVALID_ARGUMENT),  # not this profile's size
        (99, at(0, 1), codes.INVALID_ARGUMENT),
    ],
)
def test_refused_placements(world, profile_id, placement, code):
    world.nvml.create_gpu_instance(world.gpu(A100), ONE_G_ME, at(3, 1))
    world.nvml.create_gpu_instance(world.gpu(A100), ONE_G, at(4, 1))
    assert code_of(world.nvml.create_gpu_instance, world.gpu(A100), profile_id, placement) == code


def test_media_engines_run_out_beside_an_instance_that_has_them_all(world):
    world.nvml.create_gpu_instance(world.gpu(PRO), 65, at(0, 3))
    assert code_of(world.nvml.create_gpu_instance, world.gpu(PRO), 14, at(3, 3)) == codes.INSUFFICIENT_RESOURCES


def test_remaining_capacity_counts_engines(world):
    world.nvml.create_gpu_instance(world.gpu(PRO), 65, at(0, 3))
    counted = [world.nvml.get_gpu_instance_remaining_capacity(world.gpu(PRO), profile_id) for profile_id in (14, 67)]
    assert counted == [0, 3]


def test_an_instance_without_media_engines_fits_beside_one_that_has_them_all(world):
    world.nvml.create_gpu_instance(world.gpu(PRO), 65, at(0, 3))
    assert world.nvml.create_gpu_instance(world.gpu(PRO), 67, at(3, 3)).placement == at(3, 3)


@pytest.mark.parametrize(
    "arguments",
    [("create_gpu_instance", ONE_G, at(0, 1)), ("get_gpu_instances", ONE_G), ("get_gpu_instance_by_id", 1)],
)
def test_instances_need_mig_mode(world, arguments):
    function, *rest = arguments
    assert code_of(getattr(world.nvml, function), world.gpu(H100), *rest) == codes.NOT_SUPPORTED


def test_an_unknown_instance_is_not_found(world):
    assert code_of(world.nvml.get_gpu_instance_by_id, world.gpu(A100), 5) == codes.NOT_FOUND


# Compute instances


@pytest.fixture
def made(world):
    """A 3g with its full compute instance on the A100."""
    instance = world.nvml.create_gpu_instance(world.gpu(A100), THREE_G, at(4, 4))
    return world.nvml.create_compute_instance(world.gpu(A100), instance.gi_id, 2)


def test_a_compute_instance_forms_a_mig_device(made):
    assert made.mig_uuid.startswith("MIG-")


def test_a_compute_instance_is_listed_with_its_device(world, made):
    assert world.nvml.get_compute_instances(world.gpu(A100), made.gi_id, 2) == (made,)


def test_the_device_is_new_each_time(world, made):
    world.nvml.destroy_compute_instance(world.gpu(A100), made.gi_id, made.ci_id)
    again = world.nvml.create_compute_instance(world.gpu(A100), made.gi_id, 2)
    assert (again.ci_id, again.mig_uuid == made.mig_uuid) == (made.ci_id, False)


def test_the_full_compute_profile_has_the_instances_name(world, made):
    assert world.nvml.get_compute_instance_profile_info(world.gpu(A100), made.gi_id, 2).name == "3g.20gb"


def test_a_partial_compute_profile_names_its_share(world, made):
    assert world.nvml.get_compute_instance_profile_info(world.gpu(A100), made.gi_id, 0).name == "1c.3g.20gb"


def test_a_compute_profile_wider_than_the_instance_is_not_supported(world, made):
    answer = code_of(world.nvml.get_compute_instance_profile_info, world.gpu(A100), made.gi_id, 4)
    assert answer == codes.NOT_SUPPORTED


def test_no_compute_instance_fits_beside_the_full_one(world, made):
    assert code_of(world.nvml.create_compute_instance, world.gpu(A100), made.gi_id, 0) == codes.INSUFFICIENT_RESOURCES


def test_a_compute_profile_has_a_limit_of_its_own(world):
    # Inside Hopper's 2g, two plain 1c fit; of the 1c with more multiprocessors there is one.
    world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_ENABLED)
    instance = world.nvml.create_gpu_instance(world.gpu(H100), TWO_G, at(0, 2))
    world.nvml.create_compute_instance(world.gpu(H100), instance.gi_id, 7)
    answer = code_of(world.nvml.create_compute_instance, world.gpu(H100), instance.gi_id, 7)
    assert answer == codes.INSUFFICIENT_RESOURCES


def test_a_compute_instance_needs_its_gpu_instance(world):
    assert code_of(world.nvml.create_compute_instance, world.gpu(A100), 1, 0) == codes.NOT_FOUND


def test_a_gpu_instance_with_a_compute_instance_is_in_use(world, made):
    assert code_of(world.nvml.destroy_gpu_instance, world.gpu(A100), made.gi_id) == codes.IN_USE


def test_a_gpu_instance_goes_after_its_compute_instance(world, made):
    world.nvml.destroy_compute_instance(world.gpu(A100), made.gi_id, made.ci_id)
    world.nvml.destroy_gpu_instance(world.gpu(A100), made.gi_id)
    assert world.nvml.get_gpu_instances(world.gpu(A100), THREE_G) == ()


def test_a_compute_instance_with_a_process_is_in_use(world, made):
    world.machine.add_process(world.gpu(A100), Process(pid=7, gi_id=made.gi_id, ci_id=made.ci_id))
    answer = code_of(world.nvml.destroy_compute_instance, world.gpu(A100), made.gi_id, made.ci_id)
    assert answer == codes.IN_USE


def test_an_unknown_compute_instance_is_not_found(world, made):
    assert code_of(world.nvml.destroy_compute_instance, world.gpu(A100), made.gi_id, 4) == codes.NOT_FOUND


# Processes


def test_processes_name_their_instances(world, made):
    world.machine.add_process(world.gpu(A100), Process(pid=7, gi_id=made.gi_id, ci_id=made.ci_id))
    found = world.nvml.get_compute_running_processes(world.gpu(A100))
    assert found == (ProcessInfo(pid=7, gi_id=made.gi_id, ci_id=made.ci_id),)


def test_a_process_of_the_whole_gpu_has_no_instance(world):
    world.machine.add_process(world.gpu(H100), Process(pid=7, kind="graphics"))
    found = world.nvml.get_graphics_running_processes(world.gpu(H100))
    assert found == (ProcessInfo(pid=7, gi_id=None, ci_id=None),)


def test_a_process_that_only_holds_the_device_file_is_not_listed(world):
    world.machine.add_process(world.gpu(H100), Process(pid=7, kind="open"))
    assert world.nvml.get_compute_running_processes(world.gpu(H100)) == ()


# Every model


@pytest.mark.parametrize("event", ["reset", "reboot", "reload_driver"])
def test_nothing_survives(world, made, event):
    restart = getattr(world.machine, event)
    restart(world.gpu(A100)) if event == "reset" else restart()
    assert world.nvml.get_gpu_instances(world.gpu(A100), THREE_G) == ()


@pytest.mark.parametrize("model", list_models())
def test_every_profile_of_every_model_can_be_made(backend, model):
    with open_world(backend, f"{model}:mig") as world:
        world.nvml.init()
        assert _made_profiles(world) == {p.name for p in world.machine.spec.gpus[0].model.profiles}


def _made_profiles(world: World) -> set[str]:
    names, gpu = set(), world.gpu()
    for profile_enum in range(codes.GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = world.nvml.get_gpu_instance_profile_info(gpu, profile_enum)
        except NvmlError:
            continue
        for placement in world.nvml.get_gpu_instance_possible_placements(gpu, info.profile_id):
            instance = world.nvml.create_gpu_instance(gpu, info.profile_id, placement)
            compute = world.nvml.create_compute_instance(
                gpu, instance.gi_id, _full_profile(world, instance.gi_id, info)
            )
            world.nvml.destroy_compute_instance(gpu, instance.gi_id, compute.ci_id)
            world.nvml.destroy_gpu_instance(gpu, instance.gi_id)
        names.add(info.name)
    return names


def _full_profile(world: World, gi_id: int, info) -> int:
    for profile_enum in range(codes.COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            compute = world.nvml.get_compute_instance_profile_info(world.gpu(), gi_id, profile_enum)
        except NvmlError:
            continue
        if compute.slice_count == info.slice_count:
            return compute.profile_id
    raise DocumentError(info.name, "no compute instance fills it")
