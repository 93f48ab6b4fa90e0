"""Clients of many threads and processes: connections, fork, exec, and the library unloaded."""

import pynvml
from nvml import library as lib
from nvml.needs import library
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Hang

pytestmark = library()


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
    calls = (library.nvmlInit_v2, lambda: lib.get_count(library), library.nvmlShutdown)

    def begin_and_end() -> set[int]:
        return {call() for _ in range(40) for call in calls}

    threads = [lib.Thread(begin_and_end) for _ in range(8)]
    assert set().union(*(thread.result(60) for thread in threads)) == {codes.SUCCESS}


def test_few_connections_stay_open_after_many_at_once(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode", times=40))
    threads = [lib.Thread(lambda: lib.get_mig_mode(nvml, gpu)) for _ in range(40)]
    assert server.machine.wait_for_hung_calls(40, 30)
    server.machine.release()
    for thread in threads:
        thread.result(30)
    assert until(lambda: len(server.crowd) <= 16)


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
