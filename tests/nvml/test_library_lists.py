"""Lists of instances and placements: how many there are is a result alone, and no simulator can make them longer.

NVML has the caller ask the profile first; a buffer then is as long as its number of instances.
"""

import contextlib
import struct
from ctypes import byref, c_uint

import pynvml
import pytest
from nvml.fuzz import proxy
from nvml.needs import library
from tesela.edge.nvml import codes

pytestmark = library()

PROFILE_1G, PROFILE_3G = 19, 9
LIST_INSTANCES, LIST_COMPUTE_INSTANCES, LIST_PLACEMENTS = 0x36, 0x3B, 0x33
COUNTS = [0, 1, 0xA5A5A5A5]
"""What may stand in the caller's count before the call: nothing that matters."""


def list_instances(nvml, gpu, profile: int, room: int, before: int = 0) -> tuple[int, int, int]:
    """The code, the count, and how many handles were written."""
    count, handles = c_uint(before), (pynvml.c_nvmlGpuInstance_t * room)()
    code = nvml.nvmlDeviceGetGpuInstances(gpu, profile, handles, byref(count))
    return code, count.value, sum(map(bool, handles))


def list_compute_instances(nvml, instance, room: int, before: int = 0) -> tuple[int, int, int]:
    count, handles = c_uint(before), (pynvml.c_nvmlComputeInstance_t * room)()
    code = nvml.nvmlGpuInstanceGetComputeInstances(instance, 0, handles, byref(count))
    return code, count.value, sum(map(bool, handles))


def list_placements(call, target, profile: int, room: int, before: int = 0) -> tuple[int, int, int]:
    count, places = c_uint(before), (pynvml.c_nvmlGpuInstancePlacement_t * room)()
    code = call(target, profile, places, byref(count))
    return code, count.value, sum(bool(place.size) for place in places)


def lengthened(opcode: int, times: int) -> proxy.Spoil:
    """Spoils the answers to one call: the list has all its items so many times."""

    def spoil(request: bytes, answer: bytes) -> tuple[list[bytes], bool]:
        if struct.unpack_from("<H", request)[0] == opcode and answer[4:8] == bytes(4):
            (count,) = struct.unpack_from("<I", answer, 8)
            answer = answer[:8] + struct.pack("<I", times * count) + times * answer[12:]
        return [proxy.framed(answer)], True

    return spoil


@pytest.fixture
def before_lies(server, library, socket_path, monkeypatch):
    """The library, initialised, before a simulator whose answers are spoiled; and the A100."""
    with contextlib.ExitStack() as lies:
        path = socket_path.with_name("liar.sock")

        def begin(spoil: proxy.Spoil):
            lies.enter_context(proxy.between(socket_path, path, spoil))
            monkeypatch.setenv("TESELA_SIM_SOCKET", str(path))
            assert library.nvmlInit_v2() == codes.SUCCESS
            lies.callback(library.nvmlShutdown)
            return library, pynvml.nvmlDeviceGetHandleByIndex(0)

        yield begin


@pytest.mark.parametrize("before", COUNTS)
def test_instances_whatever_the_count_was(before, nvml, gpu, instance):
    pynvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE_3G)
    assert list_instances(nvml, gpu, PROFILE_3G, 2, before) == (codes.SUCCESS, 2, 2)


@pytest.mark.parametrize("before", COUNTS)
def test_no_instances_whatever_the_count_was(before, nvml, gpu):
    assert list_instances(nvml, gpu, PROFILE_3G, 2, before) == (codes.SUCCESS, 0, 0)


@pytest.mark.parametrize("before", COUNTS)
def test_compute_instances_whatever_the_count_was(before, nvml, instance, compute):
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert list_compute_instances(nvml, instance, 3, before) == (codes.SUCCESS, 2, 2)


@pytest.mark.parametrize("before", COUNTS)
@pytest.mark.parametrize("version", ["", "_v2"])
def test_placements_whatever_the_count_was(before, version, nvml, gpu):
    call = getattr(nvml, f"nvmlDeviceGetGpuInstancePossiblePlacements{version}")
    assert list_placements(call, gpu, PROFILE_1G, 7, before) == (codes.SUCCESS, 7, 7)


@pytest.mark.parametrize("before", COUNTS)
def test_compute_placements_whatever_the_count_was(before, nvml, instance):
    call = nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements
    assert list_placements(call, instance, 0, 3, before) == (codes.SUCCESS, 3, 3)


def test_placements_without_a_buffer_are_counted(nvml, gpu):
    count = c_uint(0)
    assert nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, PROFILE_1G, None, byref(count)) == codes.SUCCESS
    assert count.value == 7


def test_more_instances_than_the_profile_has(before_lies):
    nvml, gpu = before_lies(lengthened(LIST_INSTANCES, 9))
    pynvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE_3G)
    assert list_instances(nvml, gpu, PROFILE_3G, 9) == (codes.UNKNOWN, 0, 0)


def test_more_instances_than_that_profile_has_and_fewer_than_another(before_lies):
    nvml, gpu = before_lies(lengthened(LIST_INSTANCES, 2))
    for _ in range(2):
        pynvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE_3G)
    assert list_instances(nvml, gpu, PROFILE_3G, 4) == (codes.UNKNOWN, 0, 0)


def test_more_compute_instances_than_the_profile_has(before_lies):
    nvml, gpu = before_lies(lengthened(LIST_COMPUTE_INSTANCES, 2))
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE_3G)
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert list_compute_instances(nvml, instance, 4) == (codes.UNKNOWN, 0, 0)


def test_more_placements_than_a_gpu_has_slices(before_lies):
    nvml, gpu = before_lies(lengthened(LIST_PLACEMENTS, 9))
    call = nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2
    assert list_placements(call, gpu, PROFILE_3G, 18) == (codes.UNKNOWN, 0, 0)


def test_more_compute_placements_than_a_gpu_has_slices(before_lies):
    name = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"

    def spoil(request: bytes, answer: bytes) -> tuple[list[bytes], bool]:
        if name.encode() in request and answer[4:8] == bytes(4):
            answer = answer[:8] + struct.pack("<I", 18) + struct.pack("<QQ", 0, 1) * 9 + bytes(4)
        return [proxy.framed(answer)], True

    nvml, gpu = before_lies(spoil)
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE_3G)
    call = nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements
    assert list_placements(call, instance, 0, 9) == (codes.UNKNOWN, 0, 0)
