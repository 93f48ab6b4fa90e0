"""The contract of the NVML port: what every backend answers, on machines that obey MIG's rules."""

from __future__ import annotations

import inspect

import pytest
from contract.nvml_backends import A100, BACKENDS, H100, MACHINE, PRO, at, code_of, open_initialised, open_world
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import MigMode, Nvml
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process

ONE_G = 19


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def world(backend):
    with open_initialised(backend) as world:
        yield world


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


@pytest.mark.parametrize("model", [A100, H100])
def test_a_gpu_with_live_instances_refuses_to_leave_mig_mode_and_nothing_is_pending(world, model):
    gpu = world.gpu(model)
    world.nvml.set_mig_mode(gpu, codes.MIG_ENABLED)
    world.nvml.create_gpu_instance(gpu, ONE_G, at(0, 1))
    answer = code_of(world.nvml.set_mig_mode, gpu, codes.MIG_DISABLED)
    assert (answer, world.nvml.get_mig_mode(gpu)) == (codes.IN_USE, MigMode(current=1, pending=1))


def test_a_mode_that_does_not_exist_is_an_invalid_argument(world):
    assert code_of(world.nvml.set_mig_mode, world.gpu(H100), 2) == codes.INVALID_ARGUMENT


def test_ampere_keeps_its_mode_over_a_reboot(world):
    world.machine.reboot()
    assert world.nvml.get_mig_mode(world.gpu(A100)).current == codes.MIG_ENABLED


def test_hopper_forgets_its_mode_over_a_driver_reload(world):
    world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_ENABLED)
    world.machine.reload_driver()
    assert world.nvml.get_mig_mode(world.gpu(H100)) == MigMode(current=0, pending=0)


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


# The suite itself


def test_every_method_of_the_port_names_its_function():
    methods = {name for name, _ in inspect.getmembers(Nvml, inspect.isfunction) if not name.startswith("_")}
    assert set(FUNCTIONS) == methods | {"wait_event"}  # which is EventSet.wait
