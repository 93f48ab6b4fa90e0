/*
 * MIG mode of a GPU, and the MIG devices with their parents. GPU instances are in gpu_instance.c, what is inside them in
 * compute.c.
 */
#include "named.h"

#include <string.h>

#define OPCODE_GET_MIG_MODE 0x0030
#define OPCODE_SET_MIG_MODE 0x0031

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation_status);
EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id);
EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id);
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);
EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);

/* Mode */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_GET_MIG_MODE, device));
    NEED(current && pending);
    TRY(call_send(&call));
    unsigned int now = take_u32(&call.in), then = take_u32(&call.in);
    TRY(call_accept(&call));
    *current = now;
    *pending = then;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation_status)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_SET_MIG_MODE, device));
    NEED(activation_status);
    put_u32(&call.out, mode);
    TRY(call_send(&call));
    uint32_t status = take_u32(&call.in);
    TRY(call_accept(&call));
    *activation_status = (nvmlReturn_t)status;
    return NVML_SUCCESS;
}

/* MIG devices: the handle itself says what most of these ask. */

static nvmlReturn_t target_of_device(nvmlDevice_t device, unsigned int takes, const void *out, struct target *target)
{
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(out);
    return target_of(device, takes, target);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    struct target target;
    TRY(target_of_device(device, TAKES_DEVICE, is_mig, &target));
    *is_mig = target.kind == KIND_MIG;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct target target;
    TRY(target_of_device(device, TAKES(KIND_MIG), id, &target));
    *id = target.gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct target target;
    TRY(target_of_device(device, TAKES(KIND_MIG), id, &target));
    *id = target.ci;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    struct target target;
    TRY(target_of_device(mig, TAKES(KIND_MIG), device, &target));
    *device = gpu_handle(target.slot);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    struct target target;
    unsigned int ids[2];
    TRY(target_of_device(device, TAKES_GPU, mig, &target));
    TRY(named_u32("nvmlDeviceGetMigDeviceHandleByIndex", device, TAKES_GPU, NUMBERS(1, index), ids, 2));
    nvmlDevice_t handle = mig_handle(target.slot, ids[0], ids[1]);
    if (!handle)
        return NVML_ERROR_UNKNOWN;
    *mig = handle;
    return NVML_SUCCESS;
}

static nvmlReturn_t attributes_of(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    uint64_t numbers[9];
    TRY(named_u64("nvmlDeviceGetAttributes_v2", device, TAKES_DEVICE, NOTHING, attributes ? numbers : NULL, 9));
    for (size_t i = 0; i < 8; i++)
        if (numbers[i] > UINT32_MAX)
            return NVML_ERROR_UNKNOWN;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned int)numbers[0],
        .sharedCopyEngineCount = (unsigned int)numbers[1],
        .sharedDecoderCount = (unsigned int)numbers[2],
        .sharedEncoderCount = (unsigned int)numbers[3],
        .sharedJpegCount = (unsigned int)numbers[4],
        .sharedOfaCount = (unsigned int)numbers[5],
        .gpuInstanceSliceCount = (unsigned int)numbers[6],
        .computeInstanceSliceCount = (unsigned int)numbers[7],
        .memorySizeMB = numbers[8],
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return attributes_of(device, attributes);
}

/* The first version's struct ends before the slices. */
nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    nvmlDeviceAttributes_t all;
    TRY(attributes_of(device, attributes ? &all : NULL));
    memcpy(attributes, &all, offsetof(nvmlDeviceAttributes_t, gpuInstanceSliceCount));
    return NVML_SUCCESS;
}
