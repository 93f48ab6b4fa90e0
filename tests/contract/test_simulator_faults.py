"""What faults may be called, which calls they meet, and which return codes there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tesela.core.errors import DocumentError, NvmlError
from tesela.edge.nvml import codes
from tesela.edge.simulator.fault_names import list_functions, method_of
from tesela.edge.simulator.faults import Fault, FaultScript, Latency
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.named import UNSIMULATED, NamedCalls
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.targets import NamedRequest

LIBRARY = Path(__file__).parents[2] / "nvml-sim"


@pytest.fixture
def nvml():
    nvml = SimulatedNvml(build_machine("a100-40gb:mig*2"))
    nvml.init()
    return nvml


# Names


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("get_name", "get_name"),
        ("nvmlDeviceGetName", "get_name"),
        ("nvmlDeviceGetCount", "get_device_count"),
        ("nvmlInit_v2", "init"),
        ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"),
        ("nvmlDeviceGetPciInfo_v2", "get_pci_info"),
        ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons"),
        ("nvmlGpuInstanceGetInfo", "get_gpu_instance_by_id"),
        ("nvmlEventSetWait", "wait_event"),
        ("nvmlEventSetWait_v3", "nvmlEventSetWait_v3"),
        ("*", "*"),
    ],
)
def test_a_function_is_known_by_the_form_that_is_asked(name, known_as):
    assert method_of(name) == known_as


def test_a_name_that_is_nearly_right_gets_three_that_are_close():
    with pytest.raises(DocumentError, match=r"close to it are nvmlDeviceGetName, \w+, \w+; `tesela sim fail --list`"):
        method_of("nvmlDeviceGetNmae")


def test_what_the_library_answers_by_itself_cannot_misbehave():
    with pytest.raises(DocumentError, match="nvmlErrorString is answered without asking the simulator"):
        method_of("nvmlErrorString")


def test_every_function_that_is_listed_may_misbehave():
    assert [name for name in list_functions() if not method_of(name)] == []


def test_the_list_of_unsimulated_functions_is_the_librarys():
    stubs = set(re.findall(r"^UNKNOWN\((\w+)\)", (LIBRARY / "unknown.def").read_text(), re.MULTILINE))
    named = set(re.findall(r"^\w+\((nvml\w+)\)", (LIBRARY / "device.def").read_text(), re.MULTILINE))
    wanted = stubs | (named - set(list_functions()))
    assert wanted ^ UNSIMULATED == set(), "edge/simulator/unsimulated.json has to list these, or no longer"


# Which calls a fault meets


def test_the_search_for_a_gpu_by_its_index_can_fail_alone(nvml):
    nvml.machine.inject(Fault(function="nvmlDeviceGetHandleByIndex", code=codes.GPU_IS_LOST, gpu="1", times=None))
    gpu = nvml.get_uuid(0)
    with pytest.raises(NvmlError) as caught:
        nvml.get_uuid(1)
    name = NamedCalls(nvml.machine).answer(NamedRequest("nvmlDeviceGetUUID", gpu=gpu)).text
    assert (caught.value.code, name) == (codes.GPU_IS_LOST, gpu)


def test_a_function_that_nobody_simulates_can_fail_otherwise(nvml):
    nvml.machine.inject(Fault(function="nvmlDeviceGetIrqNum", code=codes.NOT_SUPPORTED))
    answers = []
    for _ in range(2):
        with pytest.raises(NvmlError) as caught:
            NamedCalls(nvml.machine).answer(NamedRequest("nvmlDeviceGetIrqNum", gpu=nvml.get_uuid(0)))
        answers.append(caught.value.code)
    assert answers == [codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND]


def test_a_latency_lets_calls_pass_and_ends():
    script = FaultScript()
    script.add(Latency(function="nvmlDeviceGetName", seconds=1.5, after=1, times=2))
    met = [script.verdict({"get_name"}, None).latency_s for _ in range(4)]
    assert (met, script.is_empty) == ([0.0, 1.5, 1.5, 0.0], True)


# Refusals


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (Fault(function="get_name", after=-1), "^after: -1 is no number of calls that pass"),
        (Fault(function="get_name", times=0), "^times: 0 is no number of calls that meet it"),
        (
            Fault(function="get_name", activation_status=codes.IN_USE),
            "only nvmlDeviceSetMigMode has one, not nvmlDeviceGetName",
        ),
        (Fault(function="get_name", code=codes.SUCCESS), "not of nvmlDeviceGetName"),
        (Fault(function="get_name", code=31), "NVML has no return code 31"),
    ],
)
def test_what_no_call_could_meet_is_refused(fault, problem):
    with pytest.raises(DocumentError, match=problem):
        FaultScript().add(fault)


# Return codes


def test_the_return_codes_are_the_librarys():
    enum, _, _ = (LIBRARY / "abi.h").read_text().partition("} nvmlReturn_t;")
    rows = re.findall(r"NVML_(?:ERROR_)?(\w+) = (\d+)", enum)
    assert {name: int(number) for name, number in rows} == codes.RETURN_CODES


def test_the_texts_are_the_librarys():
    rows = re.findall(r'\[NVML_(?:ERROR_)?(\w+)\] = "([^"]+)"', (LIBRARY / "strings.c").read_text())
    texts = {codes.RETURN_CODES[name]: text for name, text in rows} | {codes.UNKNOWN: "Unknown Error"}
    assert texts == codes.TEXTS
