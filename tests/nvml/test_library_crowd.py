"""Many threads in one client, many clients, and clients that leave little to others: every call is answered."""

import contextlib
import json
import os
import socket
import subprocess
from collections import Counter

import pytest
from nvml import library as lib
from nvml.needs import COMPILER, processes
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator import crowd
from tesela.edge.simulator.faults import Hang
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.server import SimulatorServer

pytestmark = processes("crowd", "compiler")

CALLERS = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int nvmlInit_v2(void), nvmlShutdown(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned int, void **), nvmlDeviceGetName(void *, char *, unsigned int);
static int codes[1000], calls;
static void *gpu;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t together;

static void *call(void *nothing)
{
    pthread_barrier_wait(&together);
    for (int i = 0; i < calls; i++) {
        char name[96];
        int code = nvmlDeviceGetName(gpu, name, sizeof name);
        pthread_mutex_lock(&lock);
        codes[code]++;
        pthread_mutex_unlock(&lock);
    }
    return nothing;
}

/* Threads, calls of each, bytes of their stacks. Prints how often each code was answered, then waits to be told. */
int main(int count, char **words)
{
    if (count != 4)
        return 2;
    int threads = atoi(words[1]);
    size_t stack = (size_t)atoi(words[3]);
    pthread_attr_t attributes;
    calls = atoi(words[2]);
    pthread_t *all = calloc((size_t)threads, sizeof *all);
    codes[nvmlInit_v2()]++;
    codes[nvmlDeviceGetHandleByIndex_v2(0, &gpu)]++;
    pthread_barrier_init(&together, NULL, (unsigned int)threads);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, stack))
        return puts("no stack of that size"), 3;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&all[i], &attributes, call, NULL))
            return puts("no thread"), 3;
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    printf("{");
    for (int i = 0, some = 0; i < 1000; i++)
        if (codes[i])
            printf("%s\\"%d\\": %d", some++ ? ", " : "", i, codes[i]);
    puts("}");
    fflush(stdout);
    getchar();
    return nvmlShutdown();
}
"""
STACK_BYTES = 256 * 1024
LEAST_STACK_BYTES = 16 * 1024
"""PTHREAD_STACK_MIN of x86-64, beside what the loader takes for the library's own."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crowd")
    source = folder / "callers.c"
    source.write_text(CALLERS)
    library = [f"-L{lib.LIBRARY.parent}", f"-l:{lib.LIBRARY.name}", f"-Wl,-rpath,{lib.LIBRARY.parent}"]
    command = [COMPILER, "-pthread", "-o", folder / "callers", source, *library]
    subprocess.run(command, check=True)
    return folder / "callers"


@contextlib.contextmanager
def crowd_of(program, count: int, *, threads: int, calls: int, stack: int = STACK_BYTES):
    """So many client processes, and what each printed once it has called; they stay until the end of the block."""
    command, pipe = [program, str(threads), str(calls), str(stack)], subprocess.PIPE
    with contextlib.ExitStack() as ending:
        clients = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
        for client in clients:
            ending.enter_context(client)
            ending.callback(client.stdin.close)
        yield [client.stdout.readline() for client in clients]


def count_codes(printed: list[str]) -> dict[str, int]:
    return dict(sum((Counter(json.loads(line)) for line in printed), Counter()))


def test_one_client_with_more_threads_than_connections(program, apart):
    with crowd_of(program, 1, threads=300, calls=5) as printed:
        assert count_codes(printed) == {"0": 300 * 5 + 2}


def test_forty_clients_of_sixteen_threads(program, apart):
    with crowd_of(program, 40, threads=16, calls=5) as printed:
        assert count_codes(printed) == {"0": 40 * (16 * 5 + 2)}


def test_idle_clients_keep_few_connections(program, server):
    with crowd_of(program, 4, threads=16, calls=5):
        assert until(lambda: len(server.crowd) <= 4 * 8)


def test_idle_clients_do_not_lock_operators_out(program, apart):
    clients = crowd.Crowd().most // 8 + 4  # each keeps 8 connections
    with crowd_of(program, clients, threads=16, calls=2) as printed:
        assert apart.ask(op="status")["gpus"]
        assert count_codes(printed) == {"0": clients * (16 * 2 + 2)}


def test_a_client_whose_connection_made_room_goes_on(library, socket_path):
    server = SimulatorServer(build_machine(lib.MACHINE), socket_path, crowd=crowd.Crowd(8))
    server.start()
    assert library.nvmlInit_v2() == codes.SUCCESS
    (own,) = server.crowd.clients
    with contextlib.ExitStack() as ending:
        ending.callback(server.stop)
        for _ in range(8):
            connection = ending.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.connect(str(socket_path))
        assert until(lambda: own.is_leaving)
        assert lib.get_count(library) == codes.SUCCESS


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="sanitized code takes more of a stack")
def test_a_thread_of_the_smallest_stack(program, apart):
    with crowd_of(program, 1, threads=2, calls=5, stack=LEAST_STACK_BYTES) as printed:
        assert count_codes(printed) == {"0": 12}


def test_a_held_up_call_in_a_crowd_is_not_lost(server, nvml, gpu):
    # Each is silent for longer than a call may be before the library asks whether the simulator lives.
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode", times=30))
    calls = [lib.Thread(lambda: lib.get_mig_mode(nvml, gpu)) for _ in range(30)]
    assert server.machine.wait_for_hung_calls(30, 20)
    assert not until(lambda: any(not call.is_waiting() for call in calls), 6)
    server.machine.release()
    assert {call.result(10) for call in calls} == {codes.SUCCESS}


def test_a_call_that_finds_every_connection_held_up(program, server):
    server.machine.inject(Hang(function="nvmlDeviceGetName", times=256))
    with contextlib.ExitStack() as ending:
        calling = lib.Thread(lambda: ending.enter_context(crowd_of(program, 1, threads=257, calls=1)))
        assert server.machine.wait_for_hung_calls(256, 30)
        # It waits for 10 s, and the others ask meanwhile whether the simulator lives.
        assert not until(lambda: not calling.is_waiting(), 11)
        server.machine.release()
        assert count_codes(calling.result(30)) == {"0": 258, str(codes.INSUFFICIENT_RESOURCES): 1}


def test_a_simulator_that_takes_no_connection_is_not_a_missing_driver(library, socket_path):
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(socket_path))
        listener.listen(0)
        first.connect(str(socket_path))
        assert library.nvmlInit_v2() == codes.INSUFFICIENT_RESOURCES


WITHOUT_DESCRIPTORS = """
import ctypes, os, resource, threading
library = ctypes.CDLL("libnvidia-ml.so.1")
gpu, name, number = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.c_uint()
assert library.nvmlInit_v2() == library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
threading.Thread(target=library.nvmlDeviceGetName, args=(gpu, name, 96), daemon=True).start()
input()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(library.nvmlDeviceGetMinorNumber(gpu, ctypes.byref(number)), library.nvmlInit_v2(), flush=True)
os._exit(0)
"""


def test_a_client_without_descriptors_blames_the_system(server, socket_path):
    server.machine.inject(Hang(function="nvmlDeviceGetName"))
    with lib.client(WITHOUT_DESCRIPTORS, socket_path) as client:
        assert server.machine.wait_for_hung_calls(1, 30)
        printed, _ = client.communicate("\n", timeout=30)
    assert printed == f"{codes.OPERATING_SYSTEM} {codes.OPERATING_SYSTEM}\n"
