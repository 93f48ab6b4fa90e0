"""NVML functions asked by name: which there are, whom they may be asked of, and how handles are found."""

from __future__ import annotations

import logging
import re

import pytest
from contract.named_world import NamedWorld, shape
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.simulator.calls import NAMED_CALL
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.named import NAMED
from tesela.edge.simulator.rows import NodeRow
from tesela.edge.simulator.targets import NamedAnswer, NamedRequest

NO_INSTANCE = 0xFFFFFFFF
I64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.none() | st.integers(0, 2**32 - 2)


@pytest.fixture
def world():
    world = NamedWorld()
    yield world
    world.machine.release()


# The wire


@given(
    function=st.text(max_size=20),
    gpu=st.text(max_size=20),
    gi=IDS,
    ci=IDS,
    numbers=st.lists(I64, max_size=5),
    text=st.text(max_size=9),
)
@settings(deadline=None)
def test_named_requests_round_trip(function, gpu, gi, ci, numbers, text):
    request = NamedRequest(function, gpu, gi, ci, tuple(numbers), text)
    assert NAMED_CALL.parse_arguments(NAMED_CALL.render_arguments((request,))) == (request,)


@given(numbers=st.lists(st.integers(0, 2**64 - 1), max_size=5), text=st.text(max_size=9))
@settings(deadline=None)
def test_named_answers_round_trip(numbers, text):
    answer = NamedAnswer(tuple(numbers), text)
    assert NAMED_CALL.parse_result(NAMED_CALL.render_result(answer)) == answer


@given(payload=st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_named_request_or_a_refusal(payload):
    try:
        arguments = NAMED_CALL.parse_arguments(payload)
    except DocumentError:
        return
    assert NAMED_CALL.render_arguments(arguments) == payload


@given(cut=st.data())
@settings(deadline=None)
def test_a_named_request_cut_short_is_refused(cut):
    whole = NAMED_CALL.render_arguments((NamedRequest("nvmlDeviceGetName", "GPU-é", 1, 2, (3, -4), "text"),))
    with pytest.raises(DocumentError):
        NAMED_CALL.parse_arguments(whole[: cut.draw(st.integers(0, len(whole) - 1))])


def test_a_negative_number_travels_in_twos_complement():
    assert NAMED_CALL.render_result(NamedAnswer((-1,)))[4:12] == b"\xff" * 8


def test_the_bytes_of_a_named_request():
    request = NamedRequest("nvmlUnitGetCount")
    wanted = b"\x10\0\0\0nvmlUnitGetCount" + b"\0" * 4 + b"\xff" * 8 + b"\0" * 8
    assert NAMED_CALL.render_arguments((request,)) == wanted


def test_a_long_list_is_refused_before_it_is_read():
    head = NAMED_CALL.render_arguments((NamedRequest(""),))[:16]
    with pytest.raises(DocumentError, match="at most 4096"):
        NAMED_CALL.parse_arguments(head + b"\xff" * 4)


# Whom a function may be asked of


def test_an_unknown_function_is_not_found(world):
    assert world.code("nvmlDeviceGetHoroscope") == codes.FUNCTION_NOT_FOUND


def test_an_unknown_function_is_logged_once(world, caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        world.code("nvmlDeviceGetHoroscope")
    assert [r.getMessage() for r in caplog.records] == [
        "a client called nvmlDeviceGetHoroscope, which the simulator does not know: FUNCTION_NOT_FOUND"
    ]


def test_what_is_logged_is_printable_and_short(world, caplog):
    caplog.set_level(logging.WARNING)
    world.code("\n\x1b[2J" + "x" * 5000)
    assert caplog.records[0].args == ("??[2J" + "x" * 75,)


def test_only_so_many_unknown_names_are_kept(world, caplog):
    caplog.set_level(logging.WARNING)
    for number in range(1200):
        world.code(f"nvmlNothing{number}")
    assert len(caplog.records) == 1000


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_wrong_number_of_arguments_is_refused(world, name):
    assert world.code(name, world.gpu, numbers=(0,) * (NAMED[name].numbers + 1)) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("name", sorted(name for name, row in NAMED.items() if not isinstance(row, NodeRow)))
def test_a_function_of_a_gpu_needs_one(world, name):
    assert world.code(name, numbers=(0,) * NAMED[name].numbers) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("name", sorted(name for name, row in NAMED.items() if not isinstance(row, NodeRow)))
def test_a_lost_gpu_answers_nothing(world, name):
    world.machine.lose(world.gpu)
    assert world.code(name, world.gpu, numbers=(0,) * NAMED[name].numbers) == codes.GPU_IS_LOST


@pytest.mark.parametrize("name", sorted(n for n, row in NAMED.items() if shape(row)[0] in {"D", "M", "C", "I"}))
def test_an_instance_that_is_gone_is_not_found(world, name):
    device = world.mig_device()
    world.destroy(device)
    ci = None if NAMED[name].target == "I" else device.ci_id
    numbers = (0,) * NAMED[name].numbers
    assert world.code(name, world.gpu, gi=device.gi_id, ci=ci, numbers=numbers) == codes.NOT_FOUND


@pytest.mark.parametrize("name", sorted(n for n, row in NAMED.items() if shape(row)[0] == "G"))
def test_a_mig_device_is_not_asked_what_only_gpus_answer(world, name):
    device = world.mig_device()
    numbers = (0,) * NAMED[name].numbers
    assert world.code(name, world.gpu, gi=device.gi_id, ci=device.ci_id, numbers=numbers) == codes.NOT_SUPPORTED


def test_a_gpu_has_no_attributes(world):
    assert world.code("nvmlDeviceGetAttributes_v2", world.gpu) == codes.NOT_SUPPORTED


def test_a_compute_instance_without_gpu_instance_is_refused(world):
    assert world.code("nvmlDeviceGetName", world.gpu, ci=0) == codes.INVALID_ARGUMENT


# Faults


def test_a_fault_meets_a_named_call(world):
    world.machine.inject(Fault(function="nvmlDeviceGetTemperature", code=codes.GPU_IS_LOST))
    assert world.code("nvmlDeviceGetTemperature", world.gpu, numbers=(0,)) == codes.GPU_IS_LOST


def test_a_fault_may_concern_one_gpu(world):
    world.machine.inject(Fault(function="nvmlDeviceGetPowerUsage", code=codes.UNKNOWN, gpu=world.second))
    assert [world.code("nvmlDeviceGetPowerUsage", gpu) for gpu in (world.gpu, world.second)] == [0, codes.UNKNOWN]


@pytest.mark.parametrize("name", ["get_name", "nvmlDeviceGetName"])
def test_a_function_of_the_port_has_one_name_for_faults(world, name):
    world.machine.inject(Fault(function=name, code=codes.UNKNOWN))
    assert world.code("nvmlDeviceGetName", world.gpu) == codes.UNKNOWN


def test_both_versions_of_a_function_are_one_for_faults(world):
    world.machine.inject(Fault(function="get_memory_info", code=codes.NOT_SUPPORTED))
    assert world.code("nvmlDeviceGetMemoryInfo_v2", world.gpu) == codes.NOT_SUPPORTED


def test_a_fault_of_an_unknown_function_is_refused(world):
    with pytest.raises(DocumentError, match="nvmlDeviceGetHoroscope"):
        world.machine.inject(Fault(function="nvmlDeviceGetHoroscope"))


def test_hooks_are_told_of_named_calls(world):
    told = []
    world.machine.on_call.append(lambda function, phase: told.append((function, phase)))
    world.ask("nvmlDeviceGetSerial", world.gpu)
    assert told == [("nvmlDeviceGetSerial", "before"), ("nvmlDeviceGetSerial", "after")]


# Handles


def test_a_gpu_is_found_by_its_uuid(world):
    found = world.ask("nvmlDeviceGetHandleByUUID", text=world.second)
    assert found == NamedAnswer((NO_INSTANCE, NO_INSTANCE), world.second)


def test_a_mig_device_is_found_by_its_uuid(world):
    device = world.mig_device(start=3)
    found = world.ask("nvmlDeviceGetHandleByUUID", text=device.mig_uuid)
    assert found == NamedAnswer((device.gi_id, device.ci_id), world.gpu)


def test_a_mig_device_is_found_by_its_older_name(world):
    device = world.mig_device(start=3)
    found = world.ask("nvmlDeviceGetHandleByUUID", text=f"MIG-{world.gpu}/{device.gi_id}/{device.ci_id}")
    assert found == NamedAnswer((device.gi_id, device.ci_id), world.gpu)


def test_a_mig_device_is_found_though_another_gpu_is_lost(world):
    device = world.mig_device()
    world.machine.lose(world.second)
    assert world.ask("nvmlDeviceGetHandleByUUID", text=device.mig_uuid).text == world.gpu


def test_a_lost_gpu_is_said_to_be_lost(world):
    world.machine.lose(world.second)
    assert world.code("nvmlDeviceGetHandleByUUID", text=world.second) == codes.GPU_IS_LOST


@pytest.mark.parametrize("name", ["GPU-1", "MIG-1", "MIG-GPU-00000000-0000-0000-0000-000000000000/1/0", "gpu"])
def test_an_unknown_uuid_is_not_found(world, name):
    assert world.code("nvmlDeviceGetHandleByUUID", text=name) == codes.NOT_FOUND


def test_a_uuid_that_is_none_is_refused(world):
    assert world.code("nvmlDeviceGetHandleByUUID") == codes.INVALID_ARGUMENT


def test_a_destroyed_mig_device_is_found_no_more(world):
    device = world.mig_device()
    world.destroy(device)
    assert world.code("nvmlDeviceGetHandleByUUID", text=device.mig_uuid) == codes.NOT_FOUND


@pytest.mark.parametrize(
    "bus_id", ["00000000:0B:00.0", "0000:0b:00.0", "0000:0B:00.0", "0B:00.0", "b:0", "00000000:0B:00"]
)
def test_a_gpu_is_found_by_its_bus_id(world, bus_id):
    assert world.ask("nvmlDeviceGetHandleByPciBusId_v2", text=bus_id).text == world.second


@pytest.mark.parametrize(
    ("bus_id", "code"),
    [("0000:0C:00.0", codes.NOT_FOUND), ("0001:0B:00.0", codes.NOT_FOUND), ("x", codes.INVALID_ARGUMENT)],
)
def test_a_bus_id_of_no_gpu_is_refused(world, bus_id, code):
    assert world.code("nvmlDeviceGetHandleByPciBusId_v2", text=bus_id) == code


def test_a_gpu_is_found_by_its_serial_number(world):
    serial = world.ask("nvmlDeviceGetSerial", world.second).text
    assert world.ask("nvmlDeviceGetHandleBySerial", text=serial).text == world.second


def test_a_serial_number_of_no_gpu_is_not_found(world):
    assert world.code("nvmlDeviceGetHandleBySerial", text="1234567890123") == codes.NOT_FOUND


def test_serial_numbers_have_thirteen_digits(world):
    assert re.fullmatch(r"[1-9][0-9]{12}", world.ask("nvmlDeviceGetSerial", world.gpu).text)
