"""A simulator that is not there, ends, comes back, stands still or takes its time."""

import signal

import pynvml
from contract.sim_command import served
from nvml import library as lib
from nvml.needs import library
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang, Latency

pytestmark = library()


def test_init_without_a_simulator(library):
    assert library.nvmlInit_v2() == codes.DRIVER_NOT_LOADED


def test_init_with_a_path_that_no_socket_can_have(library, monkeypatch):
    monkeypatch.setenv("TESELA_SIM_SOCKET", "/" + "x" * 200)
    assert library.nvmlInit_v2() == codes.DRIVER_NOT_LOADED


def test_a_simulator_of_other_versions(library, socket_path):
    with lib.answering(socket_path, lib.OTHER_VERSIONS):
        assert library.nvmlInit_v2() == codes.LIB_RM_VERSION_MISMATCH


def test_a_call_on_a_gpu_after_the_simulator_ended(server, nvml, gpu):
    server.stop()
    assert lib.get_mig_mode(nvml, gpu) == codes.GPU_IS_LOST


def test_a_call_on_the_machine_after_the_simulator_ended(server, nvml):
    server.stop()
    assert lib.get_count(nvml) == codes.DRIVER_NOT_LOADED


def test_shutdown_after_the_simulator_ended(server, nvml):
    server.stop()
    assert nvml.nvmlShutdown() == codes.SUCCESS


def test_shutdown_before_a_simulator_that_speaks_nonsense(server, nvml, socket_path):
    server.stop()
    with lib.answering(socket_path, b"nonsense, and more of it"):
        assert nvml.nvmlShutdown() == codes.SUCCESS
    assert lib.get_count(nvml) == codes.UNINITIALIZED


def test_a_refused_shutdown_leaves_the_session_open(server, nvml):
    server.machine.inject(Fault(function="nvmlShutdown", code=codes.UNKNOWN))
    assert nvml.nvmlShutdown() == codes.UNKNOWN
    assert lib.get_count(nvml) == codes.SUCCESS


def test_a_shutdown_for_which_a_crowd_leaves_no_room_ends_the_session(server, nvml):
    # What a simulator says where as many calls as it takes are held up.
    server.machine.inject(Fault(function="nvmlShutdown", code=codes.INSUFFICIENT_RESOURCES))
    assert nvml.nvmlShutdown() == codes.SUCCESS
    assert lib.get_count(nvml) == codes.UNINITIALIZED


def test_nonsense_is_an_unknown_error(server, nvml, gpu, socket_path):
    server.stop()
    with lib.answering(socket_path, b"nonsense, and more of it"):
        assert lib.get_mig_mode(nvml, gpu) == codes.UNKNOWN


def test_a_simulator_that_comes_back_works_with_the_handles_of_before(server, nvml, gpu, socket_path):
    server.stop()
    lib.get_mig_mode(nvml, gpu)
    with served(socket_path, lib.MACHINE):
        assert lib.get_mig_mode(nvml, gpu) == codes.SUCCESS


def test_a_simulator_that_came_back_in_between_goes_unnoticed(server, nvml, gpu, socket_path):
    server.stop()
    with served(socket_path, lib.MACHINE):
        assert lib.get_mig_mode(nvml, gpu) == codes.SUCCESS


def test_a_simulator_killed_during_a_call(apart, library):
    library.nvmlInit_v2()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(lib.A100)
    apart.ask(op="hang", function="nvmlDeviceGetMigMode")
    call = lib.Thread(lambda: lib.get_mig_mode(library, gpu))
    assert until(lambda: apart.list_calls("hung"))
    apart.kill()
    assert call.result(lib.PROMPT_S) == codes.GPU_IS_LOST


def test_a_simulator_that_stands_still(apart, library):
    library.nvmlInit_v2()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(lib.A100)
    apart.stop()
    assert lib.Thread(lambda: lib.get_mig_mode(library, gpu)).result(lib.SILENT_S) == codes.GPU_IS_LOST
    apart.process.send_signal(signal.SIGCONT)
    assert lib.get_mig_mode(library, gpu) == codes.SUCCESS


SIGNALLED = """
import signal, sys
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
print("begun", flush=True)
input()
try:
    print({tuple(pynvml.nvmlDeviceGetMigMode(gpu)) for _ in range(300)})
except pynvml.NVMLError as error:
    print(error.value)
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_signals_do_not_disturb_a_call(server, socket_path):
    server.machine.inject(Latency(function="nvmlDeviceGetMigMode", seconds=0.005))
    assert lib.run_client(SIGNALLED.replace("input()", ""), socket_path).split("\n")[1] == "{(1, 1)}"


def test_signals_do_not_put_off_the_end_of_the_silence(apart, socket_path):
    with lib.client(SIGNALLED, socket_path) as client:
        assert client.stdout.readline() == "begun\n"
        apart.stop()
        assert client.communicate("\n", timeout=lib.SILENT_S)[0] == f"{codes.GPU_IS_LOST}\n"


def test_a_call_that_takes_longer_than_the_silence_comes_back(server, nvml, gpu):
    server.machine.inject(Latency(function="nvmlDeviceGetMigMode", seconds=6))
    assert lib.Thread(lambda: lib.get_mig_mode(nvml, gpu)).result(lib.SILENT_S) == codes.SUCCESS


def test_a_hung_call_comes_back_when_it_is_let_go(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode"))
    call = lib.Thread(lambda: lib.get_mig_mode(nvml, gpu))
    assert server.machine.wait_for_hung_calls(1, 10)
    server.machine.release()
    assert call.result(lib.PROMPT_S) == codes.SUCCESS


def test_a_hung_call_does_not_hold_up_another(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode"))
    lib.Thread(lambda: lib.get_mig_mode(nvml, gpu))
    assert server.machine.wait_for_hung_calls(1, 10)
    assert lib.Thread(lambda: lib.get_mig_mode(nvml, gpu)).result(lib.PROMPT_S) == codes.SUCCESS
