"""Whatever answers at the socket, and whatever a client passes, the library answers one of NVML's codes.

Each runs as it is built and under AddressSanitizer, UBSan and LeakSanitizer; `make fuzz` looks for new inputs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from nvml.fuzz import programs, proxy, record, served
from nvml.needs import processes
from nvml.strangers.host import open_host
from polling import until
from tesela.edge.simulator.remote import RemoteNvml

pytestmark = processes("fuzz", "compiler", "make", "binutils")

LEAST_CORPUS = 100
"""A corpus that was lost on the way to this machine is no harmless one."""
VARIANTS = ["plain", "sanitized"]


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture
def simulator(tmp_path):
    with served.served(tmp_path / "sim.sock") as simulator, served.lively(simulator):
        yield simulator


def call_everything(variant: str, rounds: int, seed: int, socket) -> programs.Ended:
    program = programs.build("every_call", variant)
    return programs.run([program, str(rounds), str(seed)], socket=socket, names="\n".join(programs.exported(variant)))


@pytest.mark.parametrize(
    ("variant", "marks"), [("sanitized", ["__asan_init", "__ubsan_handle"]), ("threads", ["__tsan_func_entry"])]
)
def test_the_sanitizers_are_in_the_library(variant, marks):
    programs.build("every_call", variant)
    symbols = subprocess.run(
        ["nm", "-D", programs.LIBRARIES[variant] / "libnvidia-ml.so.1"], capture_output=True, text=True, check=True
    ).stdout
    assert [mark for mark in marks if mark not in symbols] == []


def test_every_function_that_the_library_answers_has_a_row():
    rows = re.findall(r"\b(?:ROW|DEVICE_WORD|DEVICE_TEXT)\((nvml\w+)", (programs.HERE / "rows.c").read_text())
    stubs = re.findall(r"UNKNOWN\((nvml\w+)", (programs.ROOT / "nvml-sim" / "unknown.def").read_text())
    assert sorted(set(programs.exported()) - {*rows, *stubs, "nvmlErrorString"}) == []


def test_every_function_bears_any_arguments(variant, simulator):
    ended = call_everything(variant, 40, 1, simulator.path)
    assert ended.status == 0, ended.report


def test_every_function_without_a_simulator(variant, tmp_path):
    ended = call_everything(variant, 4, 1, tmp_path / "none.sock")
    assert ended.status == 0, ended.report


@pytest.mark.parametrize("seed", range(6))
def test_every_function_bears_a_hostile_simulator(variant, simulator, tmp_path, seed):
    with proxy.between(simulator.path, tmp_path / "hostile.sock", proxy.hostile(seed)):
        ended = call_everything(variant, 4, seed, tmp_path / "hostile.sock")
    assert ended.status == 0, ended.report


def are_partitions_coming_and_going(nvml: RemoteNvml) -> bool:
    return any(nvml.get_gpu_instances(nvml.get_uuid(index), 19) for index in (0, 1))


@pytest.mark.parametrize(
    ("program", "variant"), [("every_call", "plain"), ("every_call", "sanitized"), ("threads", "threads")]
)
def test_a_simulator_killed_while_everything_is_called(program, variant, tmp_path):
    command = [programs.build(program, variant), *(["8", "400", "1"] if program == "threads" else ["4000", "1"])]
    with open_host(tmp_path, served.MACHINE) as host, ThreadPoolExecutor(1) as pool:
        running = pool.submit(programs.run, command, socket=host.socket)
        with closing(RemoteNvml(host.socket, timeout_s=10)) as nvml:
            nvml.init()
            assert until(lambda: are_partitions_coming_and_going(nvml))
        before = running.done()
        host.kill()
        ended = running.result(240)
    assert (before, ended.status) == (False, 0), ended.report


def test_the_corpus_is_harmless(variant):
    inputs = sorted(programs.CORPUS.glob("*.bin"))
    ended = programs.run([programs.build("answers", variant), *inputs])
    assert len(inputs) >= LEAST_CORPUS
    assert (ended.status, f"{len(inputs)} inputs" in ended.report) == (0, True), ended.report


def test_new_spoiled_answers_are_harmless(variant, tmp_path):
    program = programs.build("answers", variant)
    ended = programs.run([program, "-t", "5", "-s", "1", "-o", tmp_path, *sorted(programs.CORPUS.glob("*.bin"))])
    assert ended.status == 0, ended.report


def test_the_recorded_answers_know_every_function():
    recorded = record.list_functions(programs.ANSWERS.read_bytes())
    assert [name for name in record.list_functions(record.record()) if name not in recorded] == []


@pytest.mark.parametrize("seed", range(2))
def test_threads_do_not_race_before_a_hostile_simulator(simulator, tmp_path, seed):
    with proxy.between(simulator.path, tmp_path / "hostile.sock", proxy.hostile(seed, often=0.1)):
        command = [programs.build("threads", "threads"), "6", "3", str(seed)]
        ended = programs.run(command, socket=tmp_path / "hostile.sock")
    assert ended.status == 0, ended.report


def test_threads_do_not_race(simulator):
    ended = programs.run([programs.build("threads", "threads"), "8", "6", "1"], socket=simulator.path)
    assert ended.status == 0, ended.report


WITHOUT_STREAMS = """
import ctypes, os, sys
library, report = ctypes.CDLL(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
for stream in 0, 1, 2:
    os.close(stream)
code = library.nvmlInit_v2()
taken = [fd for fd in (0, 1, 2) if os.path.exists(f"/proc/self/fd/{fd}")]
os.write(report, repr((code, taken)).encode())
os._exit(0)
"""


def test_a_client_without_standard_streams_does_not_print_to_the_simulator(simulator, tmp_path):
    report = tmp_path / "report"
    library = programs.LIBRARIES["plain"] / "libnvidia-ml.so.1"
    command = [sys.executable, "-c", WITHOUT_STREAMS, library, report]
    subprocess.run(command, env={"TESELA_SIM_SOCKET": str(simulator.path)}, check=True)
    assert report.read_text() == "(0, [])"
