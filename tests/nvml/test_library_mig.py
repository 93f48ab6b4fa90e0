"""MIG devices and the instances that they stand for."""

import pynvml
from nvml import library as lib
from nvml.needs import library
from tesela.edge.nvml import codes

pytestmark = library()


def test_a_compute_instances_device_is_its_mig_device(gpu, compute):
    info = pynvml.nvmlComputeInstanceGetInfo(compute)
    assert pynvml.nvmlDeviceIsMigDeviceHandle(info.device).value == 1
    assert pynvml.nvmlDeviceGetUUID(info.device).startswith("MIG-")


def test_a_walk_over_mig_devices_finds_the_handle_of_the_instance(gpu, mig):
    def get_handle(index: int) -> int | None:
        try:
            return lib.number_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except pynvml.NVMLError_NotFound:
            return None  # indexes have holes

    found = {get_handle(index) for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))}
    assert found == {lib.number_of(mig), None}


def test_a_mig_device_knows_its_place(gpu, instance, mig):
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
    ids = (pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig))
    assert lib.number_of(parent) == lib.number_of(gpu)
    assert ids == (pynvml.nvmlGpuInstanceGetInfo(instance).id, 0)


def test_a_mig_device_by_each_form_of_its_uuid(gpu, mig):
    uuid, parent = pynvml.nvmlDeviceGetUUID(mig), pynvml.nvmlDeviceGetUUID(gpu)
    legacy = f"MIG-{parent}/{pynvml.nvmlDeviceGetGpuInstanceId(mig)}/{pynvml.nvmlDeviceGetComputeInstanceId(mig)}"
    found = {lib.number_of(pynvml.nvmlDeviceGetHandleByUUID(name)) for name in (uuid, legacy)}
    assert found == {lib.number_of(mig)}


def test_a_gpu_is_no_mig_device(gpu):
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    assert lib.code_of(pynvml.nvmlDeviceGetGpuInstanceId, gpu) == codes.INVALID_ARGUMENT


def test_a_mig_device_that_is_gone(compute, mig):
    pynvml.nvmlComputeInstanceDestroy(compute)
    assert lib.code_of(pynvml.nvmlDeviceGetUUID, mig) == codes.NOT_FOUND


def test_a_function_for_gpus_refuses_a_mig_device(mig):
    assert lib.code_of(pynvml.nvmlDeviceGetMigMode, mig) == codes.INVALID_ARGUMENT
