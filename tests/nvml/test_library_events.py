"""Event sets of the library: registration, delivery, timeouts, and sets that are gone."""

import pynvml
import pytest
from contract.sim_command import served
from nvml import library as lib
from nvml.needs import library
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault

pytestmark = library()

XID = 0x8
WITHOUT_END = 0xFFFFFFFF
SOME = 500 // 50 + 3
"""More waits than half a second has room for, each with the pause after it."""


@pytest.fixture
def events(gpu):
    """A set that waits for the A100's Xids."""
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, XID, events)
    return events


def create_mig_device(gpu):
    """A 3g.20gb as one MIG device."""
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    return pynvml.nvmlComputeInstanceGetInfo(pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)).device


def wait(events, timeout_ms: int = 0) -> int:
    """The Xid delivered, else the negative code."""
    try:
        event = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
    except pynvml.NVMLError as error:
        return -error.value
    assert event.eventType == XID
    return event.eventData


def wait_in_thread(server, events, count: int = 1) -> list[lib.Thread]:
    """Threads that wait without end, once the simulator has their requests."""
    threads = [lib.Thread(lambda: wait(events, WITHOUT_END)) for _ in range(count)]
    assert server.machine.events.wait_for_waiters(count, 10)
    return threads


@pytest.fixture
def impatient(server, events):
    """The set, before a simulator that ends each wait at once; of two reasons for that the first ends after some."""
    for times in (SOME, None):
        server.machine.inject(Fault(function="nvmlEventSetWait_v2", code=codes.TIMEOUT, times=times))
    return events


def was_asked_often(server) -> bool:
    return len(server.machine.misbehaviours()) == 1


def test_an_event_of_before_is_not_delivered(server, gpu):
    server.machine.raise_xid("0", 31)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, XID, events)
    assert wait(events) == -codes.TIMEOUT


def test_events_come_once_and_in_order(server, events):
    for xid in (31, 94):
        server.machine.raise_xid("0", xid)
    assert [wait(events) for _ in range(3)] == [31, 94, -codes.TIMEOUT]


def test_an_event_names_its_gpu_and_instance(server, gpu, events):
    mig = create_mig_device(gpu)
    ids = pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig)
    server.machine.raise_xid("0", 94, gi_id=ids[0], ci_id=ids[1])
    event = pynvml.nvmlEventSetWait_v2(events, 0)
    assert pynvml.nvmlDeviceGetUUID(event.device) == pynvml.nvmlDeviceGetUUID(gpu)
    assert (event.gpuInstanceId, event.computeInstanceId) == ids


def test_an_event_without_an_instance(server, events):
    server.machine.raise_xid("0", 79)
    event = pynvml.nvmlEventSetWait_v2(events, 0)
    assert (event.gpuInstanceId, event.computeInstanceId) == (lib.NO_INSTANCE, lib.NO_INSTANCE)


def test_another_gpus_event_is_not_delivered(server, events):
    server.machine.raise_xid("1", 31)
    assert wait(events) == -codes.TIMEOUT


def test_events_of_two_gpus_in_one_set(server, events):
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(lib.H100), XID, events)
    server.machine.raise_xid("1", 31)
    server.machine.raise_xid("0", 94)
    assert [wait(events) for _ in range(3)] == [31, 94, -codes.TIMEOUT]


def test_registering_twice_delivers_once(server, gpu, events):
    pynvml.nvmlDeviceRegisterEvents(gpu, XID, events)
    server.machine.raise_xid("0", 31)
    assert [wait(events), wait(events)] == [31, -codes.TIMEOUT]


def test_each_set_has_the_event(server, gpu, events):
    second = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, XID, second)
    server.machine.raise_xid("0", 31)
    assert (wait(events), wait(second)) == (31, 31)


def test_a_wait_ends_when_the_event_comes(server, events):
    (waiting,) = wait_in_thread(server, events)
    server.machine.raise_xid("0", 31)
    assert waiting.result(4) == 31


def test_two_threads_share_the_events_of_a_set(server, events):
    waiting = wait_in_thread(server, events, count=2)
    for xid in (31, 94):
        server.machine.raise_xid("0", xid)
    assert {thread.result(4) for thread in waiting} == {31, 94}


def test_a_registration_during_a_wait_misses_nothing(server, events):
    (waiting,) = wait_in_thread(server, events)
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(lib.H100), XID, events)
    server.machine.raise_xid("1", 31)
    server.machine.raise_xid("0", 94)
    assert (waiting.result(4), wait(events), wait(events)) == (94, 31, -codes.TIMEOUT)


def test_a_wait_of_some_time_ends_with_it(events):
    assert lib.Thread(lambda: wait(events, 300)).result(5) == -codes.TIMEOUT


def test_a_wait_is_longer_than_the_simulators(server, events):
    waiting = lib.Thread(lambda: wait(events, 60_000))
    server.machine.release()
    assert server.machine.events.wait_for_waiters(1, 10)
    server.machine.raise_xid("0", 31)
    assert waiting.result(5) == 31


def test_waits_that_end_early_are_few(server, impatient):
    assert wait(impatient, 500) == -codes.TIMEOUT
    assert not was_asked_often(server)


def test_a_wait_that_pauses_has_the_event_after_it(server, impatient):
    waiting = lib.Thread(lambda: wait(impatient, WITHOUT_END))
    assert until(lambda: was_asked_often(server))
    server.machine.raise_xid("0", 31)
    server.machine.release()
    assert waiting.result(1.5) == 31


def test_shutdown_ends_a_wait_that_pauses(server, nvml, impatient):
    waiting = lib.Thread(lambda: wait(impatient, WITHOUT_END))
    assert until(lambda: was_asked_often(server))
    nvml.nvmlShutdown()
    assert waiting.result(1.5) == -codes.UNINITIALIZED


def test_freeing_the_set_ends_a_wait_that_pauses(server, impatient):
    waiting = lib.Thread(lambda: wait(impatient, WITHOUT_END))
    assert until(lambda: was_asked_often(server))
    pynvml.nvmlEventSetFree(impatient)
    assert waiting.result(1.5) == -codes.INVALID_ARGUMENT


def test_the_first_version_of_the_wait_leaves_the_instances_alone(server, nvml, events):
    server.machine.raise_xid("0", 31)
    data = pynvml.c_nvmlEventData_t(gpuInstanceId=7, computeInstanceId=7)
    assert nvml.nvmlEventSetWait(events, pynvml.byref(data), 0) == codes.SUCCESS
    assert (data.eventData, data.gpuInstanceId, data.computeInstanceId) == (31, 7, 7)


def test_a_set_that_was_freed(gpu, events):
    pynvml.nvmlEventSetFree(events)
    assert wait(events) == -codes.INVALID_ARGUMENT
    assert lib.code_of(pynvml.nvmlDeviceRegisterEvents, gpu, XID, events) == codes.INVALID_ARGUMENT
    assert lib.code_of(pynvml.nvmlEventSetFree, events) == codes.INVALID_ARGUMENT


def test_a_set_of_an_earlier_session(nvml, events):
    nvml.nvmlShutdown()
    nvml.nvmlInit_v2()
    pynvml.nvmlEventSetCreate()
    assert wait(events) == -codes.INVALID_ARGUMENT


def test_more_sets_than_the_table_holds(nvml):
    made = [pynvml.nvmlEventSetCreate() for _ in range(256)]
    assert lib.code_of(pynvml.nvmlEventSetCreate) == pynvml.NVML_ERROR_MEMORY
    pynvml.nvmlEventSetFree(made[7])
    assert pynvml.nvmlEventSetCreate()


def test_types_that_are_not_supported(gpu):
    events, power_source = pynvml.nvmlEventSetCreate(), pynvml.nvmlEventTypePowerSourceChange
    assert not pynvml.nvmlDeviceGetSupportedEventTypes(gpu) & power_source
    assert lib.code_of(pynvml.nvmlDeviceRegisterEvents, gpu, power_source, events) == codes.NOT_SUPPORTED


def test_a_mig_device_has_no_events(gpu):
    mig, events = create_mig_device(gpu), pynvml.nvmlEventSetCreate()
    assert lib.code_of(pynvml.nvmlDeviceRegisterEvents, mig, XID, events) == codes.NOT_SUPPORTED


def test_the_simulator_ends_during_a_wait(server, events):
    (waiting,) = wait_in_thread(server, events)
    server.stop()
    assert waiting.result(4) == -codes.GPU_IS_LOST


def test_events_after_another_life_of_the_simulator(server, events, socket_path):
    server.stop()
    with served(socket_path, lib.MACHINE):
        assert wait(events) == -codes.GPU_IS_LOST
