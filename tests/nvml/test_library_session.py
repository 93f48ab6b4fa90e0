"""A process's session with the simulator: counts, loss and return, threads, processes, fork, shutdown."""

import ctypes
import signal

import pynvml
import pytest
from nvml import library as lib
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang, Latency

pytestmark = pytest.mark.library

SESSION = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"}
PROMPT_S = 4.0
"""For an answer that needs no silence to pass first."""
SILENT_S = 14.0
"""5 s without a byte, 5 s without a hello, and what a busy machine adds."""


@pytest.fixture
def apart(socket_path):
    with lib.served_apart(socket_path) as simulator:
        yield simulator


@pytest.fixture
def gpu(nvml):
    return pynvml.nvmlDeviceGetHandleByIndex(lib.A100)


def get_mig_mode(library: ctypes.CDLL, gpu) -> int:
    """The code of one call on a GPU."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    return library.nvmlDeviceGetMigMode(gpu, ctypes.byref(current), ctypes.byref(pending))


def get_count(library: ctypes.CDLL) -> int:
    """The code of one call on the machine."""
    return library.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint()))


# Counts


def test_before_init_every_function_is_uninitialized(server, library):
    nulls = [ctypes.c_void_p()] * 6
    answers = {name: getattr(library, name)(*nulls) for name in lib.list_exported() - SESSION}
    assert {name: code for name, code in answers.items() if code != codes.UNINITIALIZED} == {}


@pytest.mark.parametrize("init", ["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"])
def test_init(init, server, library):
    getattr(library, init)(0)
    assert get_count(library) == codes.SUCCESS


def test_the_last_shutdown_ends_the_session(nvml):
    nvml.nvmlInit_v2()
    nvml.nvmlShutdown()
    assert get_count(nvml) == codes.SUCCESS
    nvml.nvmlShutdown()
    assert get_count(nvml) == codes.UNINITIALIZED


def test_shutdown_without_init(library):
    assert library.nvmlShutdown() == codes.UNINITIALIZED


def test_init_after_the_last_shutdown(nvml, gpu):
    nvml.nvmlShutdown()
    nvml.nvmlInit_v2()
    assert get_mig_mode(nvml, gpu) == codes.SUCCESS


def test_the_last_shutdown_leaves_no_connection(server, nvml, gpu):
    get_mig_mode(nvml, gpu)
    nvml.nvmlShutdown()
    assert until(lambda: not server._open)


def test_a_refused_init_is_not_counted(server, library):
    server.machine.inject(Fault(function="nvmlInitWithFlags", code=codes.UNKNOWN))
    assert library.nvmlInit_v2() == codes.UNKNOWN
    assert get_count(library) == codes.UNINITIALIZED


# Loss and return


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
    assert get_mig_mode(nvml, gpu) == codes.GPU_IS_LOST


def test_a_call_on_the_machine_after_the_simulator_ended(server, nvml):
    server.stop()
    assert get_count(nvml) == codes.DRIVER_NOT_LOADED


def test_shutdown_after_the_simulator_ended(server, nvml):
    server.stop()
    assert nvml.nvmlShutdown() == codes.SUCCESS


def test_shutdown_before_a_simulator_that_speaks_nonsense(server, nvml, socket_path):
    server.stop()
    with lib.answering(socket_path, b"nonsense, and more of it"):
        assert nvml.nvmlShutdown() == codes.SUCCESS
    assert get_count(nvml) == codes.UNINITIALIZED


def test_a_refused_shutdown_leaves_the_session_open(server, nvml):
    server.machine.inject(Fault(function="nvmlShutdown", code=codes.UNKNOWN))
    assert nvml.nvmlShutdown() == codes.UNKNOWN
    assert get_count(nvml) == codes.SUCCESS


def test_nonsense_is_an_unknown_error(server, nvml, gpu, socket_path):
    server.stop()
    with lib.answering(socket_path, b"nonsense, and more of it"):
        assert get_mig_mode(nvml, gpu) == codes.UNKNOWN


def test_a_simulator_that_comes_back_works_with_the_handles_of_before(server, nvml, gpu, socket_path):
    server.stop()
    get_mig_mode(nvml, gpu)
    with lib.served(socket_path):
        assert get_mig_mode(nvml, gpu) == codes.SUCCESS


def test_a_simulator_that_came_back_in_between_goes_unnoticed(server, nvml, gpu, socket_path):
    server.stop()
    with lib.served(socket_path):
        assert get_mig_mode(nvml, gpu) == codes.SUCCESS


def test_a_simulator_killed_during_a_call(apart, library):
    library.nvmlInit_v2()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(lib.A100)
    apart.ask(op="hang", function="nvmlDeviceGetMigMode")
    call = lib.Thread(lambda: get_mig_mode(library, gpu))
    assert until(lambda: apart.list_calls("hung"))
    apart.kill()
    assert call.result(PROMPT_S) == codes.GPU_IS_LOST


def test_a_simulator_that_stands_still(apart, library):
    library.nvmlInit_v2()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(lib.A100)
    apart.stop()
    assert lib.Thread(lambda: get_mig_mode(library, gpu)).result(SILENT_S) == codes.GPU_IS_LOST
    apart.process.send_signal(signal.SIGCONT)
    assert get_mig_mode(library, gpu) == codes.SUCCESS


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
        assert client.communicate("\n", timeout=SILENT_S)[0] == f"{codes.GPU_IS_LOST}\n"


def test_a_call_that_takes_longer_than_the_silence_comes_back(server, nvml, gpu):
    server.machine.inject(Latency(function="nvmlDeviceGetMigMode", seconds=6))
    assert lib.Thread(lambda: get_mig_mode(nvml, gpu)).result(SILENT_S) == codes.SUCCESS


def test_a_hung_call_comes_back_when_it_is_let_go(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode"))
    call = lib.Thread(lambda: get_mig_mode(nvml, gpu))
    assert server.machine.wait_for_hung_calls(1, 10)
    server.machine.release()
    assert call.result(PROMPT_S) == codes.SUCCESS


def test_a_hung_call_does_not_hold_up_another(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode"))
    lib.Thread(lambda: get_mig_mode(nvml, gpu))
    assert server.machine.wait_for_hung_calls(1, 10)
    assert lib.Thread(lambda: get_mig_mode(nvml, gpu)).result(PROMPT_S) == codes.SUCCESS


# Threads and processes


def test_many_threads(nvml, gpu):
    names: set[str] = set()

    def call_often() -> None:
        for _ in range(100):
            names.add(pynvml.nvmlDeviceGetName(gpu))

    threads = [lib.Thread(call_often) for _ in range(8)]
    for thread in threads:
        thread.result(60)
    assert len(names) == 1


def test_init_and_shutdown_in_many_threads(server, library):
    calls = (library.nvmlInit_v2, lambda: get_count(library), library.nvmlShutdown)

    def begin_and_end() -> set[int]:
        return {call() for _ in range(40) for call in calls}

    threads = [lib.Thread(begin_and_end) for _ in range(8)]
    assert set().union(*(thread.result(60) for thread in threads)) == {codes.SUCCESS}


def test_few_connections_stay_open_after_many_at_once(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode", times=40))
    threads = [lib.Thread(lambda: get_mig_mode(nvml, gpu)) for _ in range(40)]
    assert server.machine.wait_for_hung_calls(40, 30)
    server.machine.release()
    for thread in threads:
        thread.result(30)
    assert until(lambda: len(server._open) <= 16)


CALL_OFTEN = """
import pynvml
pynvml.nvmlInit()
gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
print(sorted({pynvml.nvmlDeviceGetUUID(gpu) for _ in range(100) for gpu in gpus}))
pynvml.nvmlShutdown()
"""


def test_many_processes(server, socket_path):
    threads = [lib.Thread(lambda: lib.run_client(CALL_OFTEN, socket_path)) for _ in range(6)]
    uuids = sorted(gpu.uuid for gpu in server.machine.snapshot().gpus)
    assert {thread.result(60) for thread in threads} == {str(uuids)}


# Fork

FORK = """
import ctypes, os, threading
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceGetMigMode(gpu)
{before}
child = os.fork()
if not child:
    codes = []
    for call in ({calls}):
        try:
            call()
            codes.append(0)
        except pynvml.NVMLError as error:
            codes.append(error.value)
    print(codes, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
pynvml.nvmlDeviceGetMigMode(gpu)
print("the parent goes on", flush=True)
os._exit(0)
"""
MIG_MODE = "lambda: pynvml.nvmlDeviceGetMigMode(gpu)"


def fork(socket_path, *calls: str, before: str = "") -> list[str]:
    program = FORK.format(calls=", ".join(calls) + ",", before=before)
    return lib.run_client(program, socket_path).splitlines()


def test_a_forked_child_is_uninitialized(server, socket_path):
    assert fork(socket_path, MIG_MODE, "pynvml.nvmlShutdown") == ["[1, 1]", "the parent goes on"]


def test_a_forked_child_begins_a_session_of_its_own(server, socket_path):
    calls = "pynvml.nvmlInit", MIG_MODE, "pynvml.nvmlShutdown", MIG_MODE
    assert fork(socket_path, *calls) == ["[0, 0, 0, 1]", "the parent goes on"]


def test_fork_while_another_thread_is_in_a_call(server, socket_path):
    server.machine.inject(Hang(function="nvmlDeviceGetName"))
    before = (
        "thread = threading.Thread(target=lambda: pynvml.nvmlDeviceGetName(gpu), daemon=True); thread.start()\n"
        "thread.join(1); assert thread.is_alive()"
    )
    assert fork(socket_path, "pynvml.nvmlInit", MIG_MODE, before=before) == ["[0, 0]", "the parent goes on"]


FORK_OFTEN = """
import os, threading
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
ending = threading.Event()
def call():
    while not ending.is_set():
        pynvml.nvmlDeviceGetMigMode(gpu)
threads = [threading.Thread(target=call) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(30):
    child = os.fork()
    if not child:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetMigMode(gpu)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ending.set()
for thread in threads: thread.join()
print("well")
"""


def test_fork_while_threads_call(server, socket_path):
    assert lib.run_client(FORK_OFTEN, socket_path) == "well"


EXECUTE = """
import os
import pynvml
pynvml.nvmlInit()
os.execlp("ls", "ls", "-l", "/proc/self/fd")
"""


def test_a_program_that_is_executed_inherits_no_connection(server, socket_path):
    assert "socket" not in lib.run_client(EXECUTE, socket_path)


UNLOAD = """
import _ctypes, ctypes, os, sys
for _ in range(3):
    library = ctypes.CDLL(sys.argv[1])
    assert library.nvmlInit_v2() == library.nvmlShutdown() == 0
    _ctypes.dlclose(library._handle)
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("well")
"""


def test_a_library_that_was_unloaded_leaves_nothing_for_fork_to_call(server, socket_path):
    assert lib.run_client(UNLOAD, socket_path, str(lib.LIBRARY)) == "well"


# The end of the session while a call waits


def test_shutdown_ends_a_wait_for_events(server, nvml, gpu):
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    wait = lib.Thread(lambda: lib.code_of(pynvml.nvmlEventSetWait_v2, events, 0xFFFFFFFF))
    assert until(lambda: server.machine.events._changed._waiters)
    nvml.nvmlShutdown()
    assert wait.result(1.5) == codes.UNINITIALIZED


def test_shutdown_lets_another_call_come_to_its_end(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode"))
    call = lib.Thread(lambda: get_mig_mode(nvml, gpu))
    assert server.machine.wait_for_hung_calls(1, 10)
    nvml.nvmlShutdown()
    server.machine.release()
    assert call.result(PROMPT_S) == codes.SUCCESS
    assert until(lambda: not server._open)
