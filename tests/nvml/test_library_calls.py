"""Single calls through the library: handles, MIG devices, version words, buffers, unknown functions, bad answers."""

import ctypes
import logging
import struct
from ctypes import byref, c_uint, c_void_p

import pynvml
import pytest
from nvml import library as lib
from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process

pytestmark = pytest.mark.library

PROFILE_1G, PROFILE_3G = 19, 9
ENUM_1G = 0


@pytest.fixture
def gpu(nvml):
    return pynvml.nvmlDeviceGetHandleByIndex(lib.A100)


@pytest.fixture
def other(nvml):
    return pynvml.nvmlDeviceGetHandleByIndex(lib.H100)


@pytest.fixture
def instance(gpu):
    """A 3g.20gb GPU instance of the A100."""
    return pynvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE_3G)


@pytest.fixture
def compute(instance):
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)


@pytest.fixture
def mig(compute):
    """The MIG device of `compute`."""
    return pynvml.nvmlComputeInstanceGetInfo(compute).device


def number(handle) -> int:
    return ctypes.cast(handle, c_void_p).value


def pointer(value: int):
    return c_void_p(value)


def filled(kind: type[ctypes.Structure], **fields: object) -> ctypes.Structure:
    """A struct of the binding, whose constructors take no fields."""
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


# Handles


def test_one_gpu_has_one_handle(gpu):
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    assert number(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == number(gpu)


def test_ways_to_a_handle(gpu):
    bus_id = pynvml.nvmlDeviceGetPciInfo(gpu).busId
    serial = pynvml.nvmlDeviceGetSerial(gpu)
    ways = (pynvml.nvmlDeviceGetHandleByPciBusId(bus_id), pynvml.nvmlDeviceGetHandleBySerial(serial))
    assert {number(handle) for handle in ways} == {number(gpu)}


@pytest.mark.parametrize("kind", ["ascii", "binary"])
def test_a_handle_by_a_versioned_uuid(kind, nvml, gpu):
    text = pynvml.nvmlDeviceGetUUID(gpu)
    uuid = filled(pynvml.c_nvmlUUID_t, version=pynvml.nvmlUUID_v1, type=1 if kind == "ascii" else 2)
    if kind == "ascii":
        uuid.value.str = text.encode()
    else:
        ctypes.memmove(byref(uuid.value), bytes.fromhex(text.removeprefix("GPU-").replace("-", "")), 16)
    handle = c_void_p()
    assert nvml.nvmlDeviceGetHandleByUUIDV(byref(uuid), byref(handle)) == codes.SUCCESS
    assert handle.value == number(gpu)


def test_two_gpus_have_two_handles(gpu, other):
    assert number(gpu) != number(other)


@pytest.mark.parametrize("index", [2, 0xFFFFFFFF])
def test_an_index_without_a_gpu(index, nvml):
    assert lib.code_of(pynvml.nvmlDeviceGetHandleByIndex, index) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("uuid", ["GPU-0", "", "MIG-GPU-x/1/2", "x" * 200, "x" * 30_000])
def test_a_uuid_without_a_gpu(uuid, nvml):
    code = lib.code_of(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    assert code in {codes.NOT_FOUND, codes.INVALID_ARGUMENT}


@pytest.mark.parametrize("bits", [0, 1, 0xDEADBEEF, 1 << 63, (1 << 64) - 1, 0x4E56_0000_0000_0000])
def test_garbage_is_no_handle(bits, nvml):
    assert lib.code_of(pynvml.nvmlDeviceGetName, pointer(bits)) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("bit", range(64))
def test_a_handle_with_one_bit_changed_names_nothing_of_it(bit, server, gpu):
    def get_uuid(handle) -> str | int:
        try:
            return pynvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError as error:
            return error.value

    # A bit of the slot leads to another GPU that this process has met: of this machine, or of one that is gone.
    names_another_gpu = {codes.NOT_FOUND, *(gpu.uuid for gpu in server.machine.snapshot().gpus[1:])}
    assert get_uuid(pointer(number(gpu) ^ 1 << bit)) in names_another_gpu | {codes.INVALID_ARGUMENT}


def test_a_handle_of_another_kind_is_refused(gpu, instance, compute):
    assert lib.code_of(pynvml.nvmlGpuInstanceGetInfo, gpu) == codes.INVALID_ARGUMENT
    assert lib.code_of(pynvml.nvmlDeviceGetName, instance) == codes.INVALID_ARGUMENT
    assert lib.code_of(pynvml.nvmlGpuInstanceDestroy, compute) == codes.INVALID_ARGUMENT


def test_the_address_of_a_handle_is_no_handle(nvml, gpu):
    assert lib.code_of(pynvml.nvmlDeviceGetName, ctypes.pointer(gpu)) == codes.INVALID_ARGUMENT


# MIG


def test_a_compute_instances_device_is_its_mig_device(gpu, compute):
    info = pynvml.nvmlComputeInstanceGetInfo(compute)
    assert pynvml.nvmlDeviceIsMigDeviceHandle(info.device).value == 1
    assert pynvml.nvmlDeviceGetUUID(info.device).startswith("MIG-")


def test_a_walk_over_mig_devices_finds_the_handle_of_the_instance(gpu, mig):
    def get_handle(index: int) -> int | None:
        try:
            return number(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except pynvml.NVMLError_NotFound:
            return None  # indexes have holes

    found = {get_handle(index) for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))}
    assert found == {number(mig), None}


def test_a_mig_device_knows_its_place(gpu, instance, mig):
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
    ids = (pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig))
    assert number(parent) == number(gpu)
    assert ids == (pynvml.nvmlGpuInstanceGetInfo(instance).id, 0)


def test_a_mig_device_by_each_form_of_its_uuid(gpu, mig):
    uuid, parent = pynvml.nvmlDeviceGetUUID(mig), pynvml.nvmlDeviceGetUUID(gpu)
    legacy = f"MIG-{parent}/{pynvml.nvmlDeviceGetGpuInstanceId(mig)}/{pynvml.nvmlDeviceGetComputeInstanceId(mig)}"
    found = {number(pynvml.nvmlDeviceGetHandleByUUID(name)) for name in (uuid, legacy)}
    assert found == {number(mig)}


def test_a_gpu_is_no_mig_device(gpu):
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    assert lib.code_of(pynvml.nvmlDeviceGetGpuInstanceId, gpu) == codes.INVALID_ARGUMENT


def test_a_mig_device_that_is_gone(compute, mig):
    pynvml.nvmlComputeInstanceDestroy(compute)
    assert lib.code_of(pynvml.nvmlDeviceGetUUID, mig) == codes.NOT_FOUND


def test_a_function_for_gpus_refuses_a_mig_device(mig):
    assert lib.code_of(pynvml.nvmlDeviceGetMigMode, mig) == codes.INVALID_ARGUMENT


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
    "nvmlGpmQueryDeviceSupport": ("device", pynvml.c_nvmlGpmSupport_t),
    "nvmlDeviceGetGpuFabricInfoV": ("device", pynvml.c_nvmlGpuFabricInfo_v3_t),
    "nvmlDeviceGetGpuInstanceProfileInfoV": ("profile", pynvml.c_nvmlGpuInstanceProfileInfo_v2_t),
    "nvmlDeviceGetGpuInstanceProfileInfoByIdV": ("profile", pynvml.c_nvmlGpuInstanceProfileInfo_v2_t),
}


@pytest.mark.parametrize("word", [0, 1, 4 << 24, 0xFFFFFFFF], ids=hex)
@pytest.mark.parametrize("function", VERSIONED)
def test_an_unknown_version_word(function, word, nvml, gpu):
    shape, kind = VERSIONED[function]
    asked = filled(kind, version=word)
    before = [c_uint(PROFILE_1G)] if shape == "profile" else []
    assert getattr(nvml, function)(gpu, *before, byref(asked)) == codes.ARGUMENT_VERSION_MISMATCH


@pytest.mark.parametrize("word", [0, 3 << 24, 152 | 3 << 24], ids=hex)
def test_an_unknown_version_word_of_a_compute_profile(word, nvml, instance):
    asked = filled(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t, version=word)
    call = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV
    assert call(instance, 0, 0, byref(asked)) == codes.ARGUMENT_VERSION_MISMATCH


def test_an_unknown_version_word_of_a_uuid(nvml):
    asked = filled(pynvml.c_nvmlUUID_t, version=2, type=1)
    assert nvml.nvmlDeviceGetHandleByUUIDV(byref(asked), byref(c_void_p())) == codes.ARGUMENT_VERSION_MISMATCH


def test_an_unknown_version_word_of_the_driver_branch(nvml):
    asked = filled(pynvml.c_nvmlSystemDriverBranchInfo_v1_t, version=7)
    assert nvml.nvmlSystemGetDriverBranch(byref(asked), 80) == codes.ARGUMENT_VERSION_MISMATCH


# Buffers


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


@pytest.mark.parametrize("room", [0, 6])
def test_placements_that_do_not_fit(room, nvml, gpu):
    count, placements = c_uint(room), (pynvml.c_nvmlGpuInstancePlacement_t * 7)()
    call = nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2
    assert call(gpu, PROFILE_1G, placements, byref(count)) == codes.INSUFFICIENT_SIZE
    assert (count.value, placements[1].size) == (7, 0)


def test_instances_that_do_not_fit(nvml, gpu, instance):
    count, instances = c_uint(0), (pynvml.c_nvmlGpuInstance_t * 1)()
    assert nvml.nvmlDeviceGetGpuInstances(gpu, PROFILE_3G, instances, byref(count)) == codes.INSUFFICIENT_SIZE
    assert (count.value, bool(instances[0])) == (1, False)


def test_field_values_each_with_a_code(gpu):
    values = pynvml.nvmlDeviceGetFieldValues(gpu, [codes.FIELD_RESETLESS_MIG, 9999])
    assert [value.nvmlReturn for value in values] == [codes.SUCCESS, codes.NOT_SUPPORTED]


@pytest.mark.parametrize("count", [0, -1, 4097, 2**31 - 1])
def test_field_values_of_a_count_that_nobody_asks_for(count, nvml, gpu):
    values = (pynvml.c_nvmlFieldValue_t * 1)()
    assert nvml.nvmlDeviceGetFieldValues(gpu, ctypes.c_int(count), values) == codes.INVALID_ARGUMENT


def test_field_values_as_many_as_a_request_holds(gpu):
    assert len(pynvml.nvmlDeviceGetFieldValues(gpu, [codes.FIELD_RESETLESS_MIG] * 4096)) == 4096


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


# Functions that nobody simulates


def test_stubs_are_not_found(nvml):
    nulls = [c_void_p()] * 6
    answers = {name: getattr(nvml, name)(*nulls) for name in lib.list_stubs()}
    assert {name: code for name, code in answers.items() if code != codes.FUNCTION_NOT_FOUND} == {}


def test_the_simulator_names_an_unknown_function_once(nvml, gpu, caplog):
    with caplog.at_level(logging.WARNING, logger="tesela"):
        seen = [lib.code_of(pynvml.nvmlDeviceGetRetiredPages, gpu, 0) for _ in range(2)]
    named = [record for record in caplog.messages if "called nvmlDeviceGetRetiredPages," in record]
    assert (set(seen), len(named)) == ({codes.FUNCTION_NOT_FOUND}, 1)


# Texts of the codes


def error_string(library: ctypes.CDLL, code: int) -> str:
    library.nvmlErrorString.restype = ctypes.c_char_p
    return library.nvmlErrorString(code).decode()


@pytest.mark.parametrize("code", sorted(codes.TEXTS))
def test_error_strings_of_the_port(code, library):
    assert error_string(library, code) == codes.TEXTS[code]


@pytest.mark.parametrize("code", range(codes.HIGHEST_RETURN_CODE + 1))
def test_every_code_has_a_text(code, library):
    assert error_string(library, code) not in {"", "Unknown Error"}


@pytest.mark.parametrize("code", [31, 998, 999, 1000, -1])
def test_other_codes_are_unknown(code, library):
    assert error_string(library, code) == "Unknown Error"
