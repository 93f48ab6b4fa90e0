"""What the native backend does about old libraries and the binding's habits, over a stand-in library."""

from __future__ import annotations

from contextlib import ExitStack

import pynvml
import pytest
from contract.nvml_backends import code_of
from contract.nvml_library import SimulatedLibrary, loaded
from tesela.core.errors import NvmlError, StartError
from tesela.core.model import Placement
from tesela.edge.backends import open_nvml
from tesela.edge.nvml import codes
from tesela.edge.nvml.native import NativeNvml
from tesela.edge.nvml.port import FabricInfo
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.machine import Machine, build_machine

THREE_G = 9
RIGHT_HALF = Placement(start=4, size=4)


@pytest.fixture
def machine():
    return build_machine("a100-40gb:mig")


def open_native(stack, machine: Machine, **library) -> NativeNvml:
    stack.enter_context(loaded(SimulatedLibrary(machine, **library)))
    nvml = NativeNvml()
    nvml.init()
    return nvml


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def test_return_codes_are_those_of_the_binding():
    theirs = {name.removeprefix("NVML_").removeprefix("ERROR_"): value for name, value in vars(pynvml).items()}
    assert {name: theirs.get(name) for name in codes.RETURN_CODES} == codes.RETURN_CODES


def test_without_a_library_init_says_so():
    with loaded(None):
        assert code_of(open_nvml("real").init) == codes.LIBRARY_NOT_FOUND


def test_a_missing_symbol_is_function_not_found(stack, machine):
    nvml = open_native(stack, machine, missing=["nvmlDeviceGetAddressingMode"])
    assert code_of(nvml.get_addressing_mode, nvml.get_uuid(0)) == codes.FUNCTION_NOT_FOUND


@pytest.mark.parametrize(
    "library",
    [{"missing": ["nvmlDeviceGetGpuInstanceProfileInfoV"]}, {"struct_versions": False}],
    ids=["symbol", "word"],
)
def test_a_library_without_v2_profiles_gives_them_without_a_name(stack, machine, library):
    nvml = open_native(stack, machine, **library)
    info = nvml.get_gpu_instance_profile_info(nvml.get_uuid(0), 2)
    assert (info.profile_id, info.name, info.memory_size_mib) == (THREE_G, "", 19968)


def test_a_compute_profile_without_v2_has_no_name(stack, machine):
    nvml = open_native(stack, machine, missing=["nvmlGpuInstanceGetComputeInstanceProfileInfoV"])
    gpu = nvml.get_uuid(0)
    instance = nvml.create_gpu_instance(gpu, THREE_G, RIGHT_HALF)
    assert nvml.get_compute_instance_profile_info(gpu, instance.gi_id, 2).name == ""


def test_a_mig_device_is_found_by_a_walk_where_the_info_holds_the_parent(stack, machine):
    nvml = open_native(stack, machine, mig_device_in_info=False)
    gpu = nvml.get_uuid(0)
    instance = nvml.create_gpu_instance(gpu, THREE_G, RIGHT_HALF)
    made = nvml.create_compute_instance(gpu, instance.gi_id, 2)
    assert made.mig_uuid == machine.gpu(gpu).instances[0].compute_instances[0].mig_uuid


def test_a_compute_instance_whose_device_cannot_be_named_is_not_left_behind(stack, machine):
    nvml = open_native(stack, machine, missing=["nvmlComputeInstanceGetInfo_v2"])
    gpu = nvml.get_uuid(0)
    instance = nvml.create_gpu_instance(gpu, THREE_G, RIGHT_HALF)
    with pytest.raises(NvmlError):
        nvml.create_compute_instance(gpu, instance.gi_id, 2)
    assert machine.gpu(gpu).instances[0].compute_instances == ()


def test_a_gpu_instance_whose_info_cannot_be_read_is_not_left_behind(stack, machine):
    nvml = open_native(stack, machine, missing=["nvmlGpuInstanceGetInfo"])
    gpu = nvml.get_uuid(0)
    with pytest.raises(NvmlError):
        nvml.create_gpu_instance(gpu, THREE_G, RIGHT_HALF)
    assert machine.gpu(gpu).instances == ()


def test_process_lists_of_an_old_driver_are_function_not_found(stack, machine):
    nvml = open_native(stack, machine, missing=["nvmlDeviceGetComputeRunningProcesses_v3"])
    assert code_of(nvml.get_compute_running_processes, nvml.get_uuid(0)) == codes.FUNCTION_NOT_FOUND


def test_a_code_that_the_binding_has_no_words_for_still_has_some(stack, machine):
    nvml = open_native(stack, machine)
    machine.inject(Fault(function="destroy_gpu_instance", code=codes.IN_USE))
    gpu = nvml.get_uuid(0)
    instance = nvml.create_gpu_instance(gpu, THREE_G, RIGHT_HALF)
    with pytest.raises(NvmlError, match="In use by another client"):
        nvml.destroy_gpu_instance(gpu, instance.gi_id)


def test_memory_that_is_not_supported_is_said_so(stack, machine):
    nvml = open_native(stack, machine)
    machine.inject(Fault(function="get_memory_info", code=codes.NOT_SUPPORTED))
    assert code_of(nvml.get_memory_info, nvml.get_uuid(0)) == codes.NOT_SUPPORTED


def test_a_handle_is_looked_up_again_after_the_gpu_was_lost(stack, machine):
    nvml = open_native(stack, machine)
    gpu = nvml.get_uuid(0)
    machine.lose(gpu)
    code_of(nvml.get_name, gpu)
    machine.reset(gpu)
    assert nvml.get_name(gpu) == "NVIDIA A100-SXM4-40GB"


def test_a_stale_handle_is_met_once(stack, machine):
    library = SimulatedLibrary(machine)
    stack.enter_context(loaded(library))
    nvml = NativeNvml()
    nvml.init()
    gpu = nvml.get_uuid(0)
    library.forget_handles()
    first = code_of(nvml.get_name, gpu)
    assert (first, nvml.get_name(gpu)) == (codes.INVALID_ARGUMENT, "NVIDIA A100-SXM4-40GB")


def test_no_handle_is_kept_over_a_mode_change(stack):
    nvml = open_native(stack, build_machine("h100-80gb"))
    gpu = nvml.get_uuid(0)
    nvml.set_mig_mode(gpu, codes.MIG_ENABLED)
    assert nvml.get_mig_mode(gpu).current == codes.MIG_ENABLED


def test_a_fabric_that_has_not_begun_has_no_cluster(stack, machine):
    nvml = open_native(stack, machine)
    gpu = nvml.get_uuid(0)
    machine.set_fabric(gpu, FabricInfo(cluster_uuid="", clique_id=0, state=codes.FABRIC_NOT_STARTED))
    assert nvml.get_fabric_info(gpu).cluster_uuid == ""


def test_a_fabric_is_read_without_the_versioned_call(stack):
    machine = build_machine("h200-141gb:fabric")
    nvml = open_native(stack, machine, missing=["nvmlDeviceGetGpuFabricInfoV"])
    assert nvml.get_fabric_info(nvml.get_uuid(0)).state == codes.FABRIC_COMPLETED


@pytest.mark.parametrize("spec", ["", "fake", "simulated", "simulated:", "simulated:unix:", "simulated:z9", "real:x"])
def test_an_unknown_backend_cannot_start(spec):
    with pytest.raises(StartError, match="--nvml"):
        open_nvml(spec)
