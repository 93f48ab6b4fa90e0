"""The contract of the NVML port, fourth part: event sets, what they deliver, and how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from contract.nvml_backends import A100, BACKENDS, H100, PRO, at, code_of, open_initialised
from polling import until
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import NvmlEvent
from tesela.edge.simulator.faults import Fault

XID = codes.EVENT_XID
AMPERE_TYPES = 0x10F
HOPPER_TYPES = 0xC10F
SOON_S = 10.0
"""For what must come; NOW_S for what must not: it is waited out."""
NOW_S = 0.02


@pytest.fixture(params=BACKENDS)
def world(request):
    with open_initialised(request.param) as world:
        yield world


@pytest.fixture
def events(world):
    """Everything that the H100 may report."""
    return open_set(world, H100)


def open_set(world, *indexes: int):
    gpus = [world.gpu(index) for index in indexes]
    return world.nvml.open_event_set([(gpu, world.nvml.get_supported_event_types(gpu)) for gpu in gpus])


def drain(events) -> list[tuple[int, int]]:
    """Type and data of all that is there."""
    found = []
    while (event := events.wait(NOW_S)) is not None:
        found.append((event.event_type, event.data))
    return found


def change_health(world, index: int, **fields: int) -> None:
    def change(health):
        for name, value in fields.items():
            setattr(health, name, value)
        return 0

    world.machine.change_health(world.gpu(index), change)


def started(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """`call` in a thread, and what it returns or raises."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except NvmlError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def is_waited_for(events) -> bool:
    """Whether a thread is inside `wait`."""
    inner = getattr(events, "_inner", events)
    return inner._waiting


# Registration


@pytest.mark.parametrize(("index", "types"), [(A100, AMPERE_TYPES), (H100, HOPPER_TYPES), (PRO, HOPPER_TYPES)])
def test_a_gpu_tells_what_it_reports(world, index, types):
    assert world.nvml.get_supported_event_types(world.gpu(index)) == types


def test_without_ecc_there_are_no_ecc_events(world):
    change_health(world, H100, ecc_pending=0)
    world.machine.reset(world.gpu(H100))
    assert world.nvml.get_supported_event_types(world.gpu(H100)) == HOPPER_TYPES & ~0x3


def test_a_type_that_the_gpu_lacks_is_not_supported(world):
    answer = code_of(world.nvml.open_event_set, [(world.gpu(A100), codes.EVENT_GPU_UNAVAILABLE)])
    assert answer == codes.NOT_SUPPORTED


@pytest.mark.parametrize("mask", [0x10000, -1, 2**64 + XID])
def test_a_type_that_nvml_lacks_is_an_invalid_argument(world, mask):
    assert code_of(world.nvml.open_event_set, [(world.gpu(A100), mask)]) == codes.INVALID_ARGUMENT


def test_a_gpu_that_is_not_there_is_not_found(world):
    answer = code_of(world.nvml.open_event_set, [("GPU-00000000-0000-0000-0000-000000000000", XID)])
    assert answer == codes.NOT_FOUND


def test_a_lost_gpu_cannot_be_registered(world):
    world.machine.lose(world.gpu(H100))
    assert code_of(world.nvml.open_event_set, [(world.gpu(H100), XID)]) == codes.GPU_IS_LOST


def test_a_set_without_gpus_hears_nothing(world):
    assert world.nvml.open_event_set([]).wait(NOW_S) is None


def test_a_set_that_could_not_be_opened_is_not_left_open(world):
    # The C library has room for 256 sets.
    wrong = [(world.gpu(H100), XID), (world.gpu(A100), codes.EVENT_GPU_UNAVAILABLE)]
    for _ in range(300):
        code_of(world.nvml.open_event_set, wrong)
    assert world.nvml.open_event_set([(world.gpu(H100), XID)]).wait(NOW_S) is None


# Delivery


def test_nothing_comes_of_nothing(events):
    assert events.wait(NOW_S) is None


def test_an_xid_comes_with_its_number(world, events):
    world.machine.raise_xid(world.gpu(H100), 94)
    assert events.wait(SOON_S) == NvmlEvent(gpu_uuid=world.gpu(H100), event_type=XID, data=94, gi_id=None, ci_id=None)


def test_an_xid_can_be_an_instances(world):
    events, gpu = open_set(world, A100), world.gpu(A100)
    made = world.nvml.create_gpu_instance(gpu, 19, at(0, 1))
    compute = world.nvml.create_compute_instance(gpu, made.gi_id, 0)
    world.machine.raise_xid(gpu, 31, gi_id=made.gi_id, ci_id=compute.ci_id)
    event = events.wait(SOON_S)
    assert (event.gi_id, event.ci_id) == (made.gi_id, compute.ci_id)


def test_a_wait_ends_when_the_event_comes(world, events):
    thread, outcome = started(lambda: events.wait(60))
    assert until(lambda: is_waited_for(events))
    world.machine.raise_xid(world.gpu(H100), 79)
    thread.join(SOON_S)
    assert [event.data for event in outcome] == [79]


def test_each_event_comes_once_and_in_order(world):
    events = open_set(world, A100, H100)
    for index, xid in ((H100, 31), (A100, 45), (H100, 94)):
        world.machine.raise_xid(world.gpu(index), xid)
    assert drain(events) == [(XID, 31), (XID, 45), (XID, 94)]


def test_what_came_before_the_set_is_not_told(world):
    world.machine.raise_xid(world.gpu(H100), 31)
    assert open_set(world, H100).wait(NOW_S) is None


def test_another_gpus_event_is_not_told(world, events):
    world.machine.raise_xid(world.gpu(A100), 31)
    assert events.wait(NOW_S) is None


def test_a_type_that_nobody_asked_for_is_not_told(world):
    events = world.nvml.open_event_set([(world.gpu(H100), codes.EVENT_SINGLE_BIT_ECC)])
    world.machine.raise_xid(world.gpu(H100), 31)
    assert events.wait(NOW_S) is None


def test_two_sets_hear_the_same(world):
    first, second = open_set(world, H100), open_set(world, H100)
    world.machine.raise_xid(world.gpu(H100), 31)
    assert (drain(first), drain(second)) == ([(XID, 31)], [(XID, 31)])


def test_a_mode_change_is_told(world, events):
    world.nvml.set_mig_mode(world.gpu(H100), codes.MIG_ENABLED)
    assert drain(events) == [(codes.EVENT_MIG_CONFIG_CHANGE, 0)]


def test_a_pending_mode_is_told_at_the_reset(world):
    events = open_set(world, A100)
    world.nvml.set_mig_mode(world.gpu(A100), codes.MIG_DISABLED)
    before = drain(events)
    world.machine.reset(world.gpu(A100))
    assert (before, drain(events)) == ([], [(codes.EVENT_MIG_CONFIG_CHANGE, 0)])


def test_a_gpu_that_falls_off_the_bus_is_told_twice(world, events):
    world.machine.lose(world.gpu(H100))
    assert drain(events) == [(XID, codes.XID_FALLEN_OFF_THE_BUS), (codes.EVENT_GPU_UNAVAILABLE, 0)]


def test_a_lost_gpus_event_names_it(world, events):
    world.machine.lose(world.gpu(H100))
    assert events.wait(SOON_S).gpu_uuid == world.gpu(H100)


def test_an_older_gpu_that_is_lost_has_its_xid_alone(world):
    events = open_set(world, A100)
    world.machine.lose(world.gpu(A100))
    assert drain(events) == [(XID, codes.XID_FALLEN_OFF_THE_BUS)]


def test_a_changed_recovery_action_is_told(world, events):
    change_health(world, H100, recovery_action=1)
    assert drain(events) == [(XID, codes.XID_RECOVERY_ACTION_CHANGED), (codes.EVENT_RECOVERY_ACTION, 0)]


def test_the_end_of_a_recovery_action_is_told(world):
    change_health(world, H100, recovery_action=1)
    events = open_set(world, H100)
    world.machine.reset(world.gpu(H100))
    assert (codes.EVENT_RECOVERY_ACTION, 0) in drain(events)


def test_a_set_outlives_the_loss_of_one_of_its_gpus(world):
    events = open_set(world, A100, H100)
    world.machine.lose(world.gpu(A100))
    drain(events)
    world.machine.raise_xid(world.gpu(H100), 31)
    assert drain(events) == [(XID, 31)]


@pytest.mark.parametrize("code", [codes.GPU_IS_LOST, codes.UNKNOWN])
def test_a_wait_may_fail(world, events, code):
    world.machine.inject(Fault(function="nvmlEventSetWait_v2", code=code))
    assert code_of(events.wait, SOON_S) == code


def test_after_a_failed_wait_the_set_goes_on(world, events):
    world.machine.inject(Fault(function="nvmlEventSetWait_v2", code=codes.UNKNOWN))
    code_of(events.wait, SOON_S)
    world.machine.raise_xid(world.gpu(H100), 31)
    assert drain(events) == [(XID, 31)]


def test_a_driver_may_lack_events(world):
    world.machine.inject(Fault(function="nvmlDeviceRegisterEvents", code=codes.FUNCTION_NOT_FOUND))
    assert code_of(world.nvml.open_event_set, [(world.gpu(H100), XID)]) == codes.FUNCTION_NOT_FOUND


# Threads


def test_one_thread_waits_at_a_time(world, events):
    thread, _ = started(lambda: events.wait(60))
    assert until(lambda: is_waited_for(events))
    answer = code_of(events.wait, SOON_S)
    events.close()
    thread.join(SOON_S)
    assert answer == codes.IN_USE


def test_closing_a_set_ends_its_wait(world, events):
    thread, outcome = started(lambda: events.wait(600))
    assert until(lambda: is_waited_for(events))
    began_s = time.monotonic()
    events.close()
    thread.join(SOON_S)
    assert (outcome, time.monotonic() - began_s < 5) == ([None], True)


def test_a_closed_set_is_not_waited_on(events):
    events.close()
    assert code_of(events.wait, NOW_S) == codes.UNINITIALIZED


def test_a_set_can_be_closed_twice(events):
    events.close()
    events.close()


def test_a_call_goes_through_while_a_thread_waits(world, events):
    thread, _ = started(lambda: events.wait(60))
    assert until(lambda: is_waited_for(events))
    name = world.nvml.get_name(world.gpu(H100))
    events.close()
    thread.join(SOON_S)
    assert name == "NVIDIA H100 80GB HBM3"


def test_shutdown_closes_the_sets_first(world, events):
    thread, outcome = started(lambda: events.wait(600))
    assert until(lambda: is_waited_for(events))
    world.nvml.shutdown()
    thread.join(SOON_S)
    assert (outcome, code_of(events.wait, NOW_S)) == ([None], codes.UNINITIALIZED)


def test_a_shutdown_that_is_not_the_last_leaves_the_sets(world, events):
    world.nvml.init()
    world.nvml.shutdown()
    world.machine.raise_xid(world.gpu(H100), 31)
    assert drain(events) == [(XID, 31)]


def test_no_set_is_opened_before_init(world):
    world.nvml.shutdown()
    assert code_of(world.nvml.open_event_set, []) == codes.UNINITIALIZED
