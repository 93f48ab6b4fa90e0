"""The contract of the NVML port: what every backend answers, on machines that obey MIG's rules."""

from __future__ import annotations

import inspect

import pytest
from contract.nvml_backends import BACKENDS, World, open_world
from tesela.core.errors import DocumentError, NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.native import NativeNvml
from tesela.edge.nvml.port import MigMode, Nvml, ProcessInfo
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.models import list_models

A100, H100, PRO = 0, 1, 2
MACHINE = "a100-40gb:mig,h100-80gb:fabric,rtx-pro-6000:mig"
ONE_G, ONE_G_ME, TWO_G, THREE_G, FOUR_G, SEVEN_G = 19, 20, 14, 9, 5, 0


def at(start: int, size: int) -> Placement:
    return Placement(start=start, size=size)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def world(backend):
    with open_world(backend, MACHINE) as world:
        world.nvml.init()
        yield world


def code_of(call, *arguments) -> int:
    with pytest.raises(NvmlError) as refused:
        call(*arguments)
    return refused.value.code


# Session and node


def test_a_call_before_init_is_refused(backend):
    with open_world(backend, MACHINE) as world:
        assert code_of(world.nvml.get_device_count) == codes.UNINITIALIZED


def test_a_call_after_shutdown_is_refused(world):
    world.nvml.shutdown()
    assert code_of(world.nvml.get_device_count) == codes.UNINITIALIZED


def test_init_tells_that_the_driver_is_not_loaded(backend):
    with open_world(backend, MACHINE) as world:
        world.machine.inject(Fault(function="init", code=codes.DRIVER_NOT_LOADED))
        assert code_of(world.nvml.init) == codes.DRIVER_NOT_LOADED


def test_versions(world):
    assert (world.nvml.get_driver_version(), world.nvml.get_cuda_driver_version()) == ("580.95.05", 13000)


def test_gpus_are_counted(world):
    assert world.nvml.get_device_count() == 3


def test_index_and_uuid_name_the_same_gpu(world):
    assert [world.nvml.get_index(world.nvml.get_uuid(i)) for i in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_beyond_the_gpus_is_an_invalid_argument(world, index):
    assert code_of(world.nvml.get_uuid, index) == codes.INVALID_ARGUMENT


def test_an_unknown_uuid_is_not_found(world):
    assert code_of(world.nvml.get_name, "GPU-00000000-0000-0000-0000-000000000000") == codes.NOT_FOUND


def test_an_error_carries_nvmls_function_and_words(world):
    with pytest.raises(NvmlError, match=r"^nvmlGpuInstanceDestroy: Not Found \(6\)$"):
        world.nvml.destroy_gpu_instance(world.gpu(A100), 3)


# Facts of a GPU


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("get_name", "NVIDIA H100 80GB HBM3"),
        ("get_minor_number", 1),
        ("get_brand", 14),
        ("get_architecture", codes.ARCHITECTURE_HOPPER),
        ("get_cuda_compute_capability", (9, 0)),
        ("get_addressing_mode", "HMM"),
        ("get_virtualization_mode", codes.VIRTUALIZATION_NONE),
    ],
)
def test_facts_of_an_h100(world, question, answer):
    assert getattr(world.nvml, question)(world.gpu(H100)) == answer


def test_the_bus_id_has_nvmls_eight_digit_domain(world):
    assert world.nvml.get_pci_info(world.gpu(H100)).bus_id == "00000000:0B:00.0"


def test_the_pci_device_id_has_the_vendor_in_its_low_half(world):
    assert world.nvml.get_pci_info(world.gpu(H100)).pci_device_id == 0x233010DE


def test_memory_is_the_boards(world):
    assert world.nvml.get_memory_info(world.gpu(H100)).total_bytes == 81559 << 20


def test_a_gpu_behind_nvswitches_tells_its_fabric(world):
    assert world.nvml.get_fabric_info(world.gpu(H100)).state == codes.FABRIC_COMPLETED


def test_a_gpu_without_fabric_does_not_support_the_question(world):
    assert code_of(world.nvml.get_fabric_info, world.gpu(A100)) == codes.NOT_SUPPORTED


@pytest.mark.parametrize(("index", "value"), [(A100, 0), (H100, 1), (PRO, 1)])
def test_field_184_tells_resetless_mig(world, index, value):
    assert world.nvml.get_field_values(world.gpu(index), [codes.FIELD_RESETLESS_MIG]) == (value,)


def test_an_unknown_field_has_no_value_and_spoils_no_other(world):
    assert world.nvml.get_field_values(world.gpu(H100), [65000, codes.FIELD_RESETLESS_MIG]) == (None, 1)


# MIG mode


def test_ampere_waits_for_a_reset(world):
    status = world.nvml.set_mig_mode(world.gpu(A100), codes.MIG_DISABLED)
    assert (status, world.nvml.get_mig_mode(world.gpu(A100))) == (codes.RESET_REQUIRED, MigMode(current=1, pending=0))


def test_amperes_pending_mode_holds_after_the_reset(world):
    world.nvml.set_mig_mode(world.gpu(A100), codes.MIG_DISABLED)
    world.machine.reset(world.gpu(A100))
    assert world.nvml.get_mig_mode(world.gpu(A100)) == MigMode(current=0, pending=0)


def test_hopper_changes_at_once_when_idle(world):
    status = world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_ENABLED)
    assert (status, world.nvml.get_mig_mode(world.gpu(H100))) == (codes.SUCCESS, MigMode(current=1, pending=1))


def test_a_busy_hopper_succeeds_with_status_in_use_and_changes_the_pending_mode_only(world):
    world.machine.add_process(world.gpu(H100), Process(pid=7, kind="open"))
    status = world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_ENABLED)
    assert (status, world.nvml.get_mig_mode(world.gpu(H100))) == (codes.IN_USE, MigMode(current=0, pending=1))


def test_asking_for_the_current_mode_takes_the_pending_one_back(world):
    world.nvml.set_mig_mode(world.gpu(A100), codes.MIG_DISABLED)
    world.nvml.set_mig_mode(world.gpu(A100), codes.MIG_ENABLED)
    assert world.nvml.get_mig_mode(world.gpu(A100)) == MigMode(current=1, pending=1)


def test_mig_stays_on_while_instances_live(world):
    world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_ENABLED)
    world.nvml.create_gpu_instance(world.gpu(H100), ONE_G, at(0, 1))
    assert world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_DISABLED) == codes.IN_USE


def test_a_mode_that_does_not_exist_is_an_invalid_argument(world):
    assert code_of(world.nvml.set_mig_mode, world.gpu(H100), 2) == codes.INVALID_ARGUMENT


def test_ampere_keeps_its_mode_over_a_reboot(world):
    world.machine.reboot()
    assert world.nvml.get_mig_mode(world.gpu(A100)).current == codes.MIG_ENABLED


def test_hopper_forgets_its_mode_over_a_driver_reload(world):
    world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_ENABLED)
    world.machine.reload_driver()
    assert world.nvml.get_mig_mode(world.gpu(H100)) == MigMode(current=0, pending=0)


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


# Loss, reset, reboot


def test_a_lost_gpu_says_so(world):
    world.nvml.get_name(world.gpu(H100))
    world.machine.lose(world.gpu(H100))
    assert code_of(world.nvml.get_name, world.gpu(H100)) == codes.GPU_IS_LOST


def test_an_absent_gpu_is_not_found(world):
    world.machine.lose(world.gpu(H100), absent=True)
    assert code_of(world.nvml.get_index, world.gpu(H100)) == codes.NOT_FOUND


def test_an_absent_gpu_is_not_counted(world):
    world.machine.lose(world.gpu(H100), absent=True)
    assert world.nvml.get_device_count() == 2


def test_indexes_close_up_behind_an_absent_gpu(world):
    world.machine.lose(world.gpu(A100), absent=True)
    assert world.nvml.get_index(world.gpu(PRO)) == 1


def test_a_lost_gpu_is_back_after_a_reset(world):
    world.machine.lose(world.gpu(H100), absent=True)
    world.machine.reset(world.gpu(H100))
    assert world.nvml.get_name(world.gpu(H100)) == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("event", ["reset", "reboot", "reload_driver"])
def test_nothing_survives(world, made, event):
    restart = getattr(world.machine, event)
    restart(world.gpu(A100)) if event == "reset" else restart()
    assert world.nvml.get_gpu_instances(world.gpu(A100), THREE_G) == ()


# The suite itself


def test_every_method_of_the_port_names_its_function():
    methods = {name for name, _ in inspect.getmembers(Nvml, inspect.isfunction) if not name.startswith("_")}
    assert set(FUNCTIONS) == methods


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


# The real library, read-only


@pytest.fixture
def real():
    nvml = NativeNvml()
    try:
        nvml.init()
    except NvmlError as error:
        pytest.skip(f"no NVIDIA GPU here: {error}")
    yield nvml
    nvml.shutdown()


@pytest.mark.gpu
def test_a_real_gpu_is_found_by_index_and_uuid(real):
    assert real.get_index(real.get_uuid(0)) == 0


@pytest.mark.gpu
def test_a_real_gpus_profiles_lie_on_its_grid(real):
    gpu, grids = real.get_uuid(0), set()
    for profile_enum in range(codes.GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = real.get_gpu_instance_profile_info(gpu, profile_enum)
        except NvmlError:
            continue
        placements = real.get_gpu_instance_possible_placements(gpu, info.profile_id)
        grids.add(len(placements) >= info.instance_count)
    assert grids <= {True}
