"""What the native backend does about the binding's habits and older libraries, over the C library of nvml-sim/."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pynvml
import pytest
from contract.nvml_backends import World, at, code_of, open_world
from contract.older_library import as_older
from polling import until
from tesela.core.errors import NvmlError, NvmlTimeout, StartError
from tesela.edge.backends import open_nvml
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import FabricInfo, ProcessInfo
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Fault, Hang
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.server import SimulatorServer

library = pytest.mark.library
THREE_G = 9
RIGHT_HALF = at(4, 4)
NAME = "NVIDIA A100-SXM4-40GB"


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def open_native(stack, spec: str = "a100-40gb:mig", **older) -> World:
    """The native backend, initialised; `older` are what OlderLibrary takes."""
    world = stack.enter_context(open_world("library", spec))
    if older:
        stack.enter_context(as_older(**older))
    world.nvml.init()
    return world


def list_calls_of(world: World) -> list[str]:
    """The calls that come from now on."""
    called: list[str] = []
    world.machine.on_call.append(lambda function, phase: called.append(function) if phase == "before" else None)
    return called


# No library


def test_return_codes_are_those_of_the_binding():
    theirs = {name.removeprefix("NVML_").removeprefix("ERROR_"): value for name, value in vars(pynvml).items()}
    assert {name: theirs.get(name) for name in codes.RETURN_CODES} == codes.RETURN_CODES


def test_recovery_actions_are_those_of_the_binding():
    prefix = "NVML_GPU_RECOVERY_ACTION_"
    theirs = {name.removeprefix(prefix): value for name, value in vars(pynvml).items() if name.startswith(prefix)}
    ours = {name: number for number, name in codes.RECOVERY_ACTIONS.items()}
    assert {name: ours[name] for name in theirs} == theirs


def test_event_types_are_those_of_the_binding():
    ours = {name: value for name, value in vars(codes).items() if name.startswith("EVENT_")}
    assert ours == {
        "EVENT_SINGLE_BIT_ECC": pynvml.nvmlEventTypeSingleBitEccError,
        "EVENT_DOUBLE_BIT_ECC": pynvml.nvmlEventTypeDoubleBitEccError,
        "EVENT_PSTATE": pynvml.nvmlEventTypePState,
        "EVENT_XID": pynvml.nvmlEventTypeXidCriticalError,
        "EVENT_MIG_CONFIG_CHANGE": pynvml.nvmlEventMigConfigChange,
        "EVENT_SINGLE_BIT_ECC_STORM": pynvml.nvmlEventTypeSingleBitEccErrorStorm,
        "EVENT_GPU_UNAVAILABLE": pynvml.nvmlEventTypeGpuUnavailableError,
        "EVENT_RECOVERY_ACTION": pynvml.nvmlEventTypeGpuRecoveryAction,
        "EVENT_ALL": pynvml.nvmlEventTypeAll,
    }


WITHOUT_LIBRARY = """
from tesela.core.errors import NvmlError
from tesela.edge.backends import open_nvml
try:
    open_nvml("real").init()
except NvmlError as error:
    print(error.code)
"""


def test_without_a_library_init_says_so(tmp_path):
    # In front of any that the machine has: a file that is no library.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", WITHOUT_LIBRARY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == codes.LIBRARY_NOT_FOUND


@pytest.mark.parametrize("spec", ["", "fake", "simulated", "simulated:", "simulated:unix:", "simulated:z9", "real:x"])
def test_an_unknown_backend_cannot_start(spec):
    with pytest.raises(StartError, match="--nvml"):
        open_nvml(spec)


# Older libraries


@library
def test_a_missing_symbol_is_function_not_found(stack):
    world = open_native(stack, missing=["nvmlDeviceGetAddressingMode"])
    assert code_of(world.nvml.get_addressing_mode, world.gpu()) == codes.FUNCTION_NOT_FOUND


@library
@pytest.mark.parametrize(
    "question", ["get_ecc_mode", "get_remapped_rows", "get_supported_event_types", "get_addressing_mode"]
)
def test_a_driver_that_lacks_the_function_behind_the_symbol(stack, question):
    world = open_native(stack)
    world.machine.inject(Fault(function=question, code=codes.FUNCTION_NOT_FOUND))
    assert code_of(getattr(world.nvml, question), world.gpu()) == codes.FUNCTION_NOT_FOUND


@library
@pytest.mark.parametrize(
    "older",
    [
        {"missing": ["nvmlDeviceGetGpuInstanceProfileInfoV"]},
        {"refused": {"nvmlDeviceGetGpuInstanceProfileInfoV": codes.ARGUMENT_VERSION_MISMATCH}},
        {"refused": {"nvmlDeviceGetGpuInstanceProfileInfoV": codes.FUNCTION_NOT_FOUND}},
    ],
    ids=["symbol", "word", "stub"],
)
def test_a_library_without_v2_profiles_gives_them_without_a_name(stack, older):
    world = open_native(stack, **older)
    info = world.nvml.get_gpu_instance_profile_info(world.gpu(), 2)
    assert (info.profile_id, info.name, info.memory_size_mib) == (THREE_G, "", 19968)


@library
def test_a_compute_profile_without_v2_has_no_name(stack):
    world = open_native(stack, missing=["nvmlGpuInstanceGetComputeInstanceProfileInfoV"])
    instance = world.nvml.create_gpu_instance(world.gpu(), THREE_G, RIGHT_HALF)
    assert world.nvml.get_compute_instance_profile_info(world.gpu(), instance.gi_id, 2).name == ""


@library
@pytest.mark.parametrize(
    "older",
    [
        {"missing": ["nvmlDeviceGetGpuFabricInfoV"]},
        {"refused": {"nvmlDeviceGetGpuFabricInfoV": codes.ARGUMENT_VERSION_MISMATCH}},
    ],
    ids=["symbol", "word"],
)
def test_a_fabric_is_read_without_the_versioned_call(stack, older):
    world = open_native(stack, "h200-141gb:fabric", **older)
    assert world.nvml.get_fabric_info(world.gpu()).state == codes.FABRIC_COMPLETED


@library
def test_a_mig_device_is_found_by_a_walk_where_the_info_holds_the_parent(stack):
    world = open_native(stack, parent_in_info=True)
    instances = [world.nvml.create_gpu_instance(world.gpu(), 19, at(start, 1)) for start in (0, 1, 2)]
    made = [world.nvml.create_compute_instance(world.gpu(), instance.gi_id, 0) for instance in instances]
    # A hole before the one that is asked for: indexes are not closed up.
    world.nvml.destroy_compute_instance(world.gpu(), made[0].gi_id, made[0].ci_id)
    assert world.nvml.get_compute_instances(world.gpu(), made[2].gi_id, 0) == (made[2],)


@library
def test_a_compute_instance_whose_device_cannot_be_named_is_not_left_behind(stack):
    world = open_native(stack, missing=["nvmlComputeInstanceGetInfo_v2"])
    instance = world.nvml.create_gpu_instance(world.gpu(), THREE_G, RIGHT_HALF)
    code_of(world.nvml.create_compute_instance, world.gpu(), instance.gi_id, 2)
    assert world.machine.gpu("0").instances[0].compute_instances == ()


@library
def test_a_gpu_instance_whose_info_cannot_be_read_is_not_left_behind(stack):
    world = open_native(stack, missing=["nvmlGpuInstanceGetInfo"])
    code_of(world.nvml.create_gpu_instance, world.gpu(), THREE_G, RIGHT_HALF)
    assert world.machine.gpu("0").instances == ()


@library
def test_process_lists_of_an_old_driver_are_function_not_found(stack):
    world = open_native(stack, missing=["nvmlDeviceGetComputeRunningProcesses_v3"])
    assert code_of(world.nvml.get_compute_running_processes, world.gpu()) == codes.FUNCTION_NOT_FOUND


@library
def test_an_event_set_that_cannot_be_made(stack):
    world = open_native(stack, missing=["nvmlEventSetCreate"])
    with pytest.raises(NvmlError) as refused:
        world.nvml.open_event_set([(world.gpu(), codes.EVENT_XID)])
    assert (refused.value.code, refused.value.function) == (codes.FUNCTION_NOT_FOUND, "nvmlEventSetCreate")


@library
def test_an_event_set_that_cannot_be_freed(stack):
    world = open_native(stack, refused={"nvmlEventSetFree": codes.UNKNOWN})
    events = world.nvml.open_event_set([(world.gpu(), codes.EVENT_XID)])
    with pytest.raises(NvmlError, match=r"^nvmlEventSetFree: Unknown Error \(999\)"):
        events.close()


# Errors


@library
def test_a_code_that_the_binding_has_no_words_for_still_has_some(stack):
    world = open_native(stack)
    world.machine.inject(Fault(function="destroy_gpu_instance", code=codes.IN_USE))
    instance = world.nvml.create_gpu_instance(world.gpu(), THREE_G, RIGHT_HALF)
    with pytest.raises(NvmlError, match="In use by another client"):
        world.nvml.destroy_gpu_instance(world.gpu(), instance.gi_id)


@library
def test_errors_can_be_kept_in_a_set_and_logged(stack, caplog):
    # The binding's own are not hashable, and say what they are by calling the library.
    world = open_native(stack)
    world.machine.inject(Fault(function="get_name", code=codes.IN_USE))
    try:
        world.nvml.get_name(world.gpu())
    except NvmlError as error:
        logging.getLogger("test").exception("refused")
        kept = {error}
    assert (len(kept), "nvmlDeviceGetName: In use by another client (19)" in caplog.text) == (1, True)


@library
def test_memory_that_is_not_supported_is_said_so(stack):
    world = open_native(stack)
    world.machine.inject(Fault(function="get_memory_info", code=codes.NOT_SUPPORTED))
    assert code_of(world.nvml.get_memory_info, world.gpu()) == codes.NOT_SUPPORTED


@library
def test_a_fabric_that_the_gpu_could_not_join_says_why(stack):
    world = open_native(stack, "h100-80gb:fabric")
    failed = FabricInfo(cluster_uuid="", clique_id=0, state=codes.FABRIC_COMPLETED, status=codes.TIMEOUT)
    world.machine.set_fabric("0", failed)
    assert world.nvml.get_fabric_info(world.gpu()) == failed


@library
def test_a_fabric_that_has_not_begun_has_no_cluster(stack):
    world = open_native(stack, "h100-80gb:fabric")
    world.machine.set_fabric("0", FabricInfo(cluster_uuid="", clique_id=0, state=codes.FABRIC_NOT_STARTED))
    assert world.nvml.get_fabric_info(world.gpu()).cluster_uuid == ""


@library
@pytest.mark.parametrize("misses", [1, 2, 3])
def test_processes_that_come_while_they_are_listed(stack, misses):
    # The binding takes the first such answer for "so many", and asks again with room.
    world = open_native(stack)
    world.machine.add_process("0", Process(pid=7))
    fault = Fault(function="get_compute_running_processes", code=codes.INSUFFICIENT_SIZE, after=1, times=misses)
    world.machine.inject(fault)
    assert world.nvml.get_compute_running_processes(world.gpu()) == (ProcessInfo(pid=7, gi_id=None, ci_id=None),)


# Handles


@library
def test_a_handle_is_looked_up_again_after_the_gpu_was_lost(stack):
    world = open_native(stack)
    world.nvml.get_name(world.gpu())
    world.machine.lose("0")
    code_of(world.nvml.get_name, world.gpu())
    world.machine.reset("0")
    assert world.nvml.get_name(world.gpu()) == NAME


@library
@pytest.mark.parametrize("code", [codes.INVALID_ARGUMENT, codes.UNKNOWN, codes.NOT_FOUND])
def test_a_stale_handle_is_met_once(stack, code):
    world = open_native(stack)
    world.nvml.get_name(world.gpu())
    world.machine.inject(Fault(function="get_name", code=code))
    first = code_of(world.nvml.get_name, world.gpu())
    called = list_calls_of(world)
    assert (first, world.nvml.get_name(world.gpu()), len(called)) == (code, NAME, 2)


@library
def test_a_handle_that_works_is_kept(stack):
    world = open_native(stack)
    world.nvml.get_name(world.gpu())
    called = list_calls_of(world)
    world.nvml.get_name(world.gpu())
    assert called == ["get_name"]


@library
def test_no_handle_is_kept_over_a_mode_change(stack):
    # The GPU may be unbound and bound again meanwhile.
    world = open_native(stack, "h100-80gb")
    world.nvml.set_mig_mode(world.gpu(), codes.MIG_ENABLED)
    called = list_calls_of(world)
    world.nvml.get_mig_mode(world.gpu())
    assert called == ["nvmlDeviceGetHandleByUUID", "get_mig_mode"]


@library
def test_an_event_names_its_gpu_after_its_handle_was_forgotten(stack):
    world = open_native(stack, "h100-80gb*2")
    events = world.nvml.open_event_set([(world.gpu(index), codes.EVENT_MIG_CONFIG_CHANGE) for index in (0, 1)])
    world.nvml.set_mig_mode(world.gpu(1), codes.MIG_ENABLED)
    assert events.wait(10).gpu_uuid == world.gpu(1)


@library
def test_many_threads_share_one_session(stack):
    world = open_native(stack, "a100-40gb:mig*4")

    def ask(number: int) -> bool:
        gpu = world.gpu(number % 4)
        return world.nvml.get_index(gpu) == number % 4 and world.nvml.get_name(gpu) == NAME

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(200)))


# Sessions


@library
def test_a_session_outlives_a_restart_of_the_simulator(stack):
    world = open_native(stack)
    path = world.server.path
    world.server.stop()
    again = SimulatorServer(world.machine, path)
    again.start()
    stack.callback(again.stop)
    assert until(lambda: world.nvml.get_name(world.gpu()) == NAME)


@library
def test_a_simulator_that_is_gone_is_an_error(stack):
    world = open_native(stack)
    world.server.stop()
    assert code_of(world.nvml.get_device_count) in {codes.GPU_IS_LOST, codes.DRIVER_NOT_LOADED, codes.UNINITIALIZED}


@library
def test_a_wait_tells_of_another_life_of_the_simulator(stack):
    world = open_native(stack)
    events = world.nvml.open_event_set([(world.gpu(), codes.EVENT_XID)])
    path = world.server.path
    world.server.stop()
    again = SimulatorServer(build_machine("a100-40gb:mig"), path)
    again.start()
    stack.callback(again.stop)
    assert code_of(events.wait, 10) == codes.GPU_IS_LOST


@library
def test_init_counts(stack):
    world = open_native(stack)
    world.nvml.init()
    world.nvml.shutdown()
    assert world.nvml.get_device_count() == 1


@library
def test_nvml_is_not_shut_down_below_a_thread_that_waits(stack):
    world = open_native(stack)
    events = world.nvml.open_event_set([(world.gpu(), codes.EVENT_XID)])
    inside: list[str] = []
    world.machine.on_call.append(lambda function, phase: inside.append(f"{function} {phase}"))
    waiter = threading.Thread(target=events.wait, args=(600,))
    waiter.start()
    assert until(lambda: "wait_event before" in inside)
    world.nvml.shutdown()
    waiter.join(10)
    assert (waiter.is_alive(), inside[-1]) == (False, "shutdown after")


@library
def test_under_the_watchdog_nvml_is_not_shut_down_beside_a_call(stack):
    world = open_native(stack)
    watched = WatchedNvml(world.nvml, timeout_s=0.5)
    watched.init()
    world.machine.inject(Hang(function="get_name"))
    with pytest.raises(NvmlTimeout):
        watched.get_name(world.gpu())
    with pytest.raises(NvmlTimeout, match="nvmlShutdown: not called"):
        watched.shutdown()
    world.machine.release()
