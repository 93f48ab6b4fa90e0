"""How often NVML is initialised: counts, and a session that ends while a call waits."""

import ctypes

import pynvml
import pytest
from nvml import library as lib
from nvml.needs import library
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang

pytestmark = library("binutils")

SESSION = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"}


def test_before_init_every_function_is_uninitialized(server, library):
    nulls = [ctypes.c_void_p()] * 6
    answers = {name: getattr(library, name)(*nulls) for name in lib.list_exported() - SESSION}
    assert {name: code for name, code in answers.items() if code != codes.UNINITIALIZED} == {}


@pytest.mark.parametrize("init", ["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"])
def test_init(init, server, library):
    getattr(library, init)(0)
    assert lib.get_count(library) == codes.SUCCESS


def test_the_last_shutdown_ends_the_session(nvml):
    nvml.nvmlInit_v2()
    nvml.nvmlShutdown()
    assert lib.get_count(nvml) == codes.SUCCESS
    nvml.nvmlShutdown()
    assert lib.get_count(nvml) == codes.UNINITIALIZED


def test_shutdown_without_init(library):
    assert library.nvmlShutdown() == codes.UNINITIALIZED


def test_init_after_the_last_shutdown(nvml, gpu):
    nvml.nvmlShutdown()
    nvml.nvmlInit_v2()
    assert lib.get_mig_mode(nvml, gpu) == codes.SUCCESS


def test_the_last_shutdown_leaves_no_connection(server, nvml, gpu):
    lib.get_mig_mode(nvml, gpu)
    nvml.nvmlShutdown()
    assert until(lambda: not server.crowd)


def test_a_refused_init_is_not_counted(server, library):
    server.machine.inject(Fault(function="nvmlInitWithFlags", code=codes.UNKNOWN))
    assert library.nvmlInit_v2() == codes.UNKNOWN
    assert lib.get_count(library) == codes.UNINITIALIZED


# The end of the session while a call waits


def test_shutdown_ends_a_wait_for_events(server, nvml, gpu):
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    wait = lib.Thread(lambda: lib.code_of(pynvml.nvmlEventSetWait_v2, events, 0xFFFFFFFF))
    assert server.machine.events.wait_for_waiters(1, 10)
    nvml.nvmlShutdown()
    assert wait.result(1.5) == codes.UNINITIALIZED


def test_shutdown_lets_another_call_come_to_its_end(server, nvml, gpu):
    server.machine.inject(Hang(function="nvmlDeviceGetMigMode"))
    call = lib.Thread(lambda: lib.get_mig_mode(nvml, gpu))
    assert server.machine.wait_for_hung_calls(1, 10)
    nvml.nvmlShutdown()
    server.machine.release()
    assert call.result(lib.PROMPT_S) == codes.SUCCESS
    assert until(lambda: not server.crowd)
