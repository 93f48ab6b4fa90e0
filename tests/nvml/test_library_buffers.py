"""Results that fit the buffer of the caller, that do not, and that have none."""

import ctypes
from ctypes import byref, c_uint, c_ulong, c_void_p

import pynvml
import pytest
from nvml import library as lib
from nvml.needs import library
from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process

pytestmark = library("binutils")


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial"])
def test_a_text_fits_or_is_refused(function, nvml, gpu):
    call, text = getattr(nvml, function), getattr(pynvml, function)(gpu).encode()
    exact, small = ctypes.create_string_buffer(len(text) + 1), ctypes.create_string_buffer(b"\xaa" * 200, 200)
    assert call(gpu, exact, len(text) + 1) == codes.SUCCESS
    assert exact.value == text
    assert call(gpu, small, len(text)) == codes.INSUFFICIENT_SIZE
    assert call(gpu, small, 0) == codes.INSUFFICIENT_SIZE
    assert set(small.raw) == {0xAA}


def test_the_driver_version_fits_or_is_refused(nvml):
    small = ctypes.create_string_buffer(3)
    assert nvml.nvmlSystemGetDriverVersion(small, 3) == codes.INSUFFICIENT_SIZE


def test_processes_count_before_they_are_listed(server, nvml, gpu):
    for pid in (11, 12):
        server.machine.add_process("0", Process(pid=pid))
    count = c_uint(1)
    room = (pynvml.c_nvmlProcessInfo_v2_t * 1)()
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, byref(count), room) == codes.INSUFFICIENT_SIZE
    assert (count.value, room[0].pid) == (2, 0)
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)] == [11, 12]


@pytest.mark.parametrize(("version", "words"), [("", 4), ("_v2", 6), ("_v3", 6)])
def test_processes_in_each_version(version, words, server, nvml, gpu):
    for pid in (11, 12):
        server.machine.add_process("0", Process(pid=pid))
    count, room = c_uint(2), (c_uint * (2 * words))()
    call = getattr(nvml, f"nvmlDeviceGetComputeRunningProcesses{version}")
    assert call(gpu, byref(count), room) == codes.SUCCESS
    assert (room[0], room[words]) == (11, 12)


def test_field_values_each_with_a_code(gpu):
    values = pynvml.nvmlDeviceGetFieldValues(gpu, [codes.FIELD_RESETLESS_MIG, 9999])
    assert [value.nvmlReturn for value in values] == [codes.SUCCESS, codes.NOT_SUPPORTED]


@pytest.mark.parametrize("count", [0, -1, 4097, 2**31 - 1])
def test_field_values_of_a_count_that_nobody_asks_for(count, nvml, gpu):
    values = (pynvml.c_nvmlFieldValue_t * 1)()
    assert nvml.nvmlDeviceGetFieldValues(gpu, ctypes.c_int(count), values) == codes.INVALID_ARGUMENT


def test_field_values_as_many_as_a_request_holds(gpu):
    assert len(pynvml.nvmlDeviceGetFieldValues(gpu, [codes.FIELD_RESETLESS_MIG] * 4096)) == 4096


def test_an_affinity_fills_as_many_words_as_were_asked_for(nvml, gpu):
    words = (c_ulong * 3)(7, 7, 7)
    assert nvml.nvmlDeviceGetMemoryAffinity(gpu, 2, words, 0) == codes.SUCCESS
    assert list(words) == [1, 0, 7]


@pytest.mark.parametrize("count", [0, 4097])
def test_an_affinity_of_a_length_that_nobody_asks_for(count, nvml, gpu):
    assert nvml.nvmlDeviceGetCpuAffinity(gpu, count, (c_ulong * 1)()) == codes.INVALID_ARGUMENT


def test_the_fabric_in_each_version(nvml, other):
    first = pynvml.c_nvmlGpuFabricInfo_t()
    assert nvml.nvmlDeviceGetGpuFabricInfo(other, byref(first)) == codes.SUCCESS
    second, third = pynvml.c_nvmlGpuFabricInfo_v2_t(), pynvml.c_nvmlGpuFabricInfo_v3_t()
    for asked in (second, third):
        pynvml.nvmlDeviceGetGpuFabricInfoV(other, byref(asked))
    assert first.state == second.state == third.state == codes.FABRIC_COMPLETED
    assert bytes(first.clusterUuid) == bytes(second.clusterUuid) == bytes(third.clusterUuid) != bytes(16)


# Nulls

WITHOUT_ARGUMENTS = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"}


def test_nulls_are_invalid_arguments(nvml):
    nulls = [c_void_p()] * 6
    asked = lib.list_exported() - lib.list_stubs() - WITHOUT_ARGUMENTS
    answers = {name: getattr(nvml, name)(*nulls) for name in asked}
    assert {name: code for name, code in answers.items() if code != codes.INVALID_ARGUMENT} == {}


def test_null_results_are_invalid_arguments(nvml, gpu):
    nulls = [c_void_p()] * 5
    # The way to a handle takes a text first.
    asked = {name for name in lib.list_exported() - lib.list_stubs() if name.startswith("nvmlDeviceGet")}
    asked -= {name for name in asked if name.startswith(("nvmlDeviceGetHandleBy", "nvmlDeviceGetCount"))}
    answers = {name: getattr(nvml, name)(gpu, *nulls) for name in asked}
    assert {name: code for name, code in answers.items() if code != codes.INVALID_ARGUMENT} == {}
