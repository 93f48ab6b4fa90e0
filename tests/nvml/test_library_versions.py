"""One fact in the struct of each version, and version words that no struct has."""

import ctypes
import struct
from ctypes import byref, c_uint, c_void_p

import pynvml
import pytest
from nvml import library as lib
from nvml.needs import library
from tesela.edge.nvml import codes

pytestmark = library()

PROFILE_1G = 19
ENUM_1G = 0


def test_memory_of_a_mig_device_in_both_versions(mig):
    first, second = pynvml.nvmlDeviceGetMemoryInfo(mig), pynvml.nvmlDeviceGetMemoryInfo(mig, pynvml.nvmlMemory_v2)
    assert (first.total, first.free, first.used) == (second.total, second.free, second.used + second.reserved)


def test_memory_of_a_gpu_in_both_versions(gpu):
    first, second = pynvml.nvmlDeviceGetMemoryInfo(gpu), pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2)
    assert (first.total, first.free, first.used) == (second.total, second.free, second.used + second.reserved)


def test_attributes_of_a_mig_device_in_both_versions(nvml, mig):
    first, second = pynvml.c_nvmlDeviceAttributes(), pynvml.c_nvmlDeviceAttributes()
    assert nvml.nvmlDeviceGetAttributes(mig, byref(first)) == codes.SUCCESS
    assert nvml.nvmlDeviceGetAttributes_v2(mig, byref(second)) == codes.SUCCESS
    assert first.multiprocessorCount == second.multiprocessorCount != 0
    assert (first.memorySizeMB, second.gpuInstanceSliceCount) == (0, 3)


def test_profiles_in_each_version(nvml, gpu):
    first = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, ENUM_1G, version=1)
    second = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, ENUM_1G)
    third = (ctypes.c_uint32 * 38)(152 | 3 << 24)
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, ENUM_1G, third) == codes.SUCCESS
    assert second.name == "MIG 1g.5gb"
    assert first.memorySizeMB == second.memorySizeMB == struct.unpack_from("<Q", third, 40)[0]
    assert (first.id, first.multiprocessorCount) == (third[1], third[4]) == (PROFILE_1G, 14)
    assert bytes(third)[48:144].rstrip(b"\0").decode() == second.name


def test_a_compute_profile_in_each_version(nvml, instance):
    first = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0, version=1)
    second = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0)
    third = (ctypes.c_uint32 * 35)(140 | 3 << 24)
    assert nvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 0, 0, third) == codes.SUCCESS
    assert second.name == "MIG 1c.3g.20gb"
    assert first.multiprocessorCount == second.multiprocessorCount == third[4]
    assert first.sharedCopyEngineCount == second.sharedCopyEngineCount == third[5] == 3
    assert bytes(third)[40:136].rstrip(b"\0").decode() == second.name


def test_older_structs_are_not_written_past_their_end(nvml, gpu, compute):
    pci, info = (ctypes.c_ubyte * 68)(*[0xAA] * 68), (ctypes.c_ubyte * 32)(*[0xAA] * 32)
    assert nvml.nvmlDeviceGetPciInfo_v2(gpu, pci) == codes.SUCCESS
    assert nvml.nvmlComputeInstanceGetInfo(compute, info) == codes.SUCCESS
    assert (set(pci[36:]), set(info[24:])) == ({0xAA}, {0xAA})
    assert bytes(pci[:13]).rstrip(b"\0").decode() == pynvml.nvmlDeviceGetPciInfo(gpu).busIdLegacy


# Version words

VERSIONED = {
    "nvmlDeviceGetMemoryInfo_v2": ("device", pynvml.c_nvmlMemory_v2_t),
    "nvmlDeviceGetTemperatureV": ("device", pynvml.c_nvmlTemperature_v1_t),
    "nvmlDeviceGetAddressingMode": ("device", pynvml.c_nvmlDeviceAddressingMode_t),
    "nvmlDeviceGetSramEccErrorStatus": ("device", pynvml.c_nvmlEccSramErrorStatus_v1_t),
    "nvmlDeviceGetGpuFabricInfoV": ("device", pynvml.c_nvmlGpuFabricInfo_v3_t),
    "nvmlDeviceGetGpuInstanceProfileInfoV": ("profile", pynvml.c_nvmlGpuInstanceProfileInfo_v2_t),
    "nvmlDeviceGetGpuInstanceProfileInfoByIdV": ("profile", pynvml.c_nvmlGpuInstanceProfileInfo_v2_t),
}


@pytest.mark.parametrize("word", [0, 1, 4 << 24, 0xFFFFFFFF], ids=hex)
@pytest.mark.parametrize("function", VERSIONED)
def test_an_unknown_version_word(function, word, nvml, gpu):
    shape, kind = VERSIONED[function]
    asked = lib.filled(kind, version=word)
    before = [c_uint(PROFILE_1G)] if shape == "profile" else []
    assert getattr(nvml, function)(gpu, *before, byref(asked)) == codes.ARGUMENT_VERSION_MISMATCH


@pytest.mark.parametrize("word", [0, 3 << 24, 152 | 3 << 24], ids=hex)
def test_an_unknown_version_word_of_a_compute_profile(word, nvml, instance):
    asked = lib.filled(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t, version=word)
    call = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV
    assert call(instance, 0, 0, byref(asked)) == codes.ARGUMENT_VERSION_MISMATCH


def test_an_unknown_version_word_of_a_uuid(nvml):
    asked = lib.filled(pynvml.c_nvmlUUID_t, version=2, type=1)
    assert nvml.nvmlDeviceGetHandleByUUIDV(byref(asked), byref(c_void_p())) == codes.ARGUMENT_VERSION_MISMATCH


def test_an_unknown_version_word_of_the_driver_branch(nvml):
    asked = lib.filled(pynvml.c_nvmlSystemDriverBranchInfo_v1_t, version=7)
    assert nvml.nvmlSystemGetDriverBranch(byref(asked), 80) == codes.ARGUMENT_VERSION_MISMATCH
