"""Handles of GPUs: the ways to one, and what is none."""

import ctypes
from ctypes import byref, c_void_p

import pynvml
import pytest
from nvml import library as lib
from nvml.needs import library
from tesela.edge.nvml import codes

pytestmark = library()


def test_one_gpu_has_one_handle(gpu):
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    assert lib.number_of(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == lib.number_of(gpu)


def test_ways_to_a_handle(gpu):
    bus_id = pynvml.nvmlDeviceGetPciInfo(gpu).busId
    serial = pynvml.nvmlDeviceGetSerial(gpu)
    ways = (pynvml.nvmlDeviceGetHandleByPciBusId(bus_id), pynvml.nvmlDeviceGetHandleBySerial(serial))
    assert {lib.number_of(handle) for handle in ways} == {lib.number_of(gpu)}


@pytest.mark.parametrize("kind", ["ascii", "binary"])
def test_a_handle_by_a_versioned_uuid(kind, nvml, gpu):
    text = pynvml.nvmlDeviceGetUUID(gpu)
    uuid = lib.filled(pynvml.c_nvmlUUID_t, version=pynvml.nvmlUUID_v1, type=1 if kind == "ascii" else 2)
    if kind == "ascii":
        uuid.value.str = text.encode()
    else:
        ctypes.memmove(byref(uuid.value), bytes.fromhex(text.removeprefix("GPU-").replace("-", "")), 16)
    handle = c_void_p()
    assert nvml.nvmlDeviceGetHandleByUUIDV(byref(uuid), byref(handle)) == codes.SUCCESS
    assert handle.value == lib.number_of(gpu)


def test_two_gpus_have_two_handles(gpu, other):
    assert lib.number_of(gpu) != lib.number_of(other)


@pytest.mark.parametrize("index", [2, 0xFFFFFFFF])
def test_an_index_without_a_gpu(index, nvml):
    assert lib.code_of(pynvml.nvmlDeviceGetHandleByIndex, index) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("uuid", ["GPU-0", "", "MIG-GPU-x/1/2", "x" * 200, "x" * 30_000])
def test_a_uuid_without_a_gpu(uuid, nvml):
    code = lib.code_of(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    assert code in {codes.NOT_FOUND, codes.INVALID_ARGUMENT}


@pytest.mark.parametrize("bits", [0, 1, 0xDEADBEEF, 1 << 63, (1 << 64) - 1, 0x4E56_0000_0000_0000])
def test_garbage_is_no_handle(bits, nvml):
    assert lib.code_of(pynvml.nvmlDeviceGetName, c_void_p(bits)) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("bit", range(64))
def test_a_handle_with_one_bit_changed_names_nothing_of_it(bit, server, gpu):
    def get_uuid(handle) -> str | int:
        try:
            return pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError as error:
            return error.value

    # A bit of the slot leads to another GPU that this process has met: of this machine, or of one that is gone.
    names_another_gpu = {codes.NOT_FOUND, *(gpu.uuid for gpu in server.machine.snapshot().gpus[1:])}
    assert get_uuid(c_void_p(lib.number_of(gpu) ^ 1 << bit)) in names_another_gpu | {codes.INVALID_ARGUMENT}


def test_a_handle_of_another_kind_is_refused(gpu, instance, compute):
    assert lib.code_of(pynvml.nvmlGpuInstanceGetInfo, gpu) == codes.INVALID_ARGUMENT
    assert lib.code_of(pynvml.nvmlDeviceGetName, instance) == codes.INVALID_ARGUMENT
    assert lib.code_of(pynvml.nvmlGpuInstanceDestroy, compute) == codes.INVALID_ARGUMENT


def test_the_address_of_a_handle_is_no_handle(nvml, gpu):
    assert lib.code_of(pynvml.nvmlDeviceGetName, ctypes.pointer(gpu)) == codes.INVALID_ARGUMENT
