/*
 * Compute instances: what a GPU instance offers, and what is in it. The handle of a compute instance and that of its
 * MIG device name the same ids.
 */
#include "mig.h"

#include "named.h"

#include <string.h>

#define OPCODE_CREATE 0x003A
#define OPCODE_LIST 0x003B
#define OPCODE_DESTROY 0x003C
#define ENGINE_PROFILE_SHARED 0U
#define PROFILE_NUMBERS 9
#define LEAST_COMPUTE_INSTANCE_BYTES 16

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                                 unsigned int engines,
                                                                 nvmlComputeInstanceProfileInfo_t *info);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                                  unsigned int engines,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *info);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance,
                                                                       unsigned int profile_id, unsigned int *count);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance,
                                                                        unsigned int profile_id,
                                                                        nvmlComputeInstancePlacement_t *placements,
                                                                        unsigned int *count);
EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                         nvmlComputeInstance_t *compute);
EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance,
                                                                      unsigned int profile_id,
                                                                      const nvmlComputeInstancePlacement_t *placement,
                                                                      nvmlComputeInstance_t *compute);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                       nvmlComputeInstance_t *computes, unsigned int *count);
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                          nvmlComputeInstance_t *compute);
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info);
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info);
EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute);

static nvmlReturn_t target_of_instance(nvmlGpuInstance_t instance, const void *out, struct target *target)
{
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(out);
    return target_of(instance, TAKES(KIND_GPU_INSTANCE), target);
}

/* Profiles */

/* By name and not by 0x0039, which is the driver's own and leaves out the engines. */
static nvmlReturn_t profile_of(nvmlGpuInstance_t instance, unsigned int profile, unsigned int engines,
                               nvmlComputeInstanceProfileInfo_v2_t *info)
{
    CALL(call);
    uint32_t numbers[PROFILE_NUMBERS], count;
    TRY(named_begin(&call, "nvmlGpuInstanceGetComputeInstanceProfileInfoV", instance, TAKES(KIND_GPU_INSTANCE)));
    NEED(engines == ENGINE_PROFILE_SHARED);
    TRY(named_send(&call, NUMBERS(1, (int32_t)profile), &count));
    take_small(&call.in, numbers, PROFILE_NUMBERS);
    memset(info, 0, sizeof *info);
    take_profile_name(&call.in, info->name);
    call.in.failed |= count != PROFILE_NUMBERS;
    info->v1 = (nvmlComputeInstanceProfileInfo_t){
        .id = numbers[0],
        .sliceCount = numbers[1],
        .instanceCount = numbers[2],
        .multiprocessorCount = numbers[3],
        .sharedCopyEngineCount = numbers[4],
        .sharedDecoderCount = numbers[5],
        .sharedEncoderCount = numbers[6],
        .sharedJpegCount = numbers[7],
        .sharedOfaCount = numbers[8],
    };
    return call_accept(&call);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                          unsigned int engines, nvmlComputeInstanceProfileInfo_t *info)
{
    nvmlComputeInstanceProfileInfo_v2_t answer;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    TRY(profile_of(instance, profile, engines, &answer));
    *info = answer.v1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                           unsigned int engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info)
{
    nvmlComputeInstanceProfileInfo_v2_t answer;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    unsigned int version = info->version;
    bool is_v3 = version == STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3);
    if (!is_v3 && version != STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(profile_of(instance, profile, engines, &answer));
    answer.version = version;
    *info = answer;
    if (is_v3) /* the same and one more word */
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                                unsigned int *count)
{
    return named_u32("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", instance, TAKES(KIND_GPU_INSTANCE),
                     NUMBERS(1, profile_id), count, 1);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                                 nvmlComputeInstancePlacement_t *placements,
                                                                 unsigned int *count)
{
    CALL(call);
    uint32_t numbers;
    TRY(named_begin(&call, "nvmlGpuInstanceGetComputeInstancePossiblePlacements", instance,
                    TAKES(KIND_GPU_INSTANCE)));
    NEED(count);
    TRY(named_send(&call, NUMBERS(1, profile_id), &numbers));
    call.in.failed |= numbers % 2 != 0 || numbers / 2 > MOST_INSTANCES;
    struct reader items = call.in;
    for (uint32_t i = 0; i < numbers; i++)
        call.in.failed |= take_u64(&call.in) > UINT32_MAX;
    (void)take_text(&call.in);
    TRY(call_accept(&call));
    *count = numbers / 2;
    for (uint32_t i = 0; placements && i < numbers / 2; i++) {
        placements[i].start = (unsigned int)take_u64(&items);
        placements[i].size = (unsigned int)take_u64(&items);
    }
    return NVML_SUCCESS;
}

/* Instances */

/* Reads one; fails if it lies elsewhere than it was looked for. */
static nvmlComputeInstance_t take_compute_instance(struct call *call, struct reader *in)
{
    uint32_t id = take_u32(in), gi = take_u32(in);
    (void)take_u32(in);
    (void)take_text(in);
    nvmlComputeInstance_t handle = compute_instance_handle(call->target.slot, gi, id);
    in->failed |= gi != call->target.gi || !handle;
    return handle;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                  nvmlComputeInstance_t *compute)
{
    CALL(call);
    TRY(call_gpu_instance(&call, OPCODE_CREATE, instance));
    NEED(compute);
    put_u32(&call.out, profile_id);
    TRY(call_send(&call));
    nvmlComputeInstance_t handle = take_compute_instance(&call, &call.in);
    TRY(call_accept(&call));
    *compute = handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                               const nvmlComputeInstancePlacement_t *placement,
                                                               nvmlComputeInstance_t *compute)
{
    struct target target;
    unsigned int id;
    TRY(target_of_instance(instance, compute, &target));
    NEED(placement);
    TRY(named_u32("nvmlGpuInstanceCreateComputeInstanceWithPlacement", instance, TAKES(KIND_GPU_INSTANCE),
                  NUMBERS(3, profile_id, placement->start, placement->size), &id, 1));
    nvmlComputeInstance_t handle = compute_instance_handle(target.slot, target.gi, id);
    if (!handle)
        return NVML_ERROR_UNKNOWN;
    *compute = handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                nvmlComputeInstance_t *computes, unsigned int *count)
{
    CALL(call);
    TRY(call_gpu_instance(&call, OPCODE_LIST, instance));
    NEED(computes && count);
    put_u32(&call.out, profile_id);
    TRY(call_send(&call));
    uint32_t found = take_count(&call.in, LEAST_COMPUTE_INSTANCE_BYTES);
    call.in.failed |= found > MOST_INSTANCES;
    struct reader items = call.in;
    for (uint32_t i = 0; i < found; i++)
        (void)take_compute_instance(&call, &call.in);
    TRY(call_accept(&call));
    if (found > 1) { /* there is room for one in any case; a profile's id is its enum */
        nvmlComputeInstanceProfileInfo_v2_t profile;
        TRY(profile_of(instance, profile_id, ENGINE_PROFILE_SHARED, &profile));
        if (found > profile.v1.instanceCount)
            return NVML_ERROR_UNKNOWN;
    }
    *count = found;
    for (uint32_t i = 0; i < found; i++)
        computes[i] = take_compute_instance(&call, &items);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t *compute)
{
    struct target target;
    TRY(target_of_instance(instance, compute, &target));
    TRY(named_nothing("nvmlGpuInstanceGetComputeInstanceById", instance, TAKES(KIND_GPU_INSTANCE), NUMBERS(1, id)));
    nvmlComputeInstance_t handle = compute_instance_handle(target.slot, target.gi, id);
    if (!handle)
        return NVML_ERROR_UNKNOWN;
    *compute = handle;
    return NVML_SUCCESS;
}

/* `device` is the MIG device, as drivers have it, and not its parent, as NVML's documentation says. */
static nvmlReturn_t info_of(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    struct target target;
    unsigned int numbers[3];
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    TRY(target_of(compute, TAKES(KIND_COMPUTE_INSTANCE), &target));
    TRY(named_u32("nvmlComputeInstanceGetInfo_v2", compute, TAKES(KIND_COMPUTE_INSTANCE), NOTHING, numbers, 3));
    *info = (nvmlComputeInstanceInfo_t){
        .device = mig_handle(target.slot, target.gi, target.ci),
        .gpuInstance = gpu_instance_handle(target.slot, target.gi),
        .id = target.ci,
        .profileId = numbers[0],
        .placement = {.start = numbers[1], .size = numbers[2]},
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    return info_of(compute, info);
}

/* The first version's struct ends before the placement. */
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    nvmlComputeInstanceInfo_t all;
    TRY(info_of(compute, info ? &all : NULL));
    memcpy(info, &all, offsetof(nvmlComputeInstanceInfo_t, placement));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    CALL(call);
    TRY(call_compute_instance(&call, OPCODE_DESTROY, compute));
    TRY(call_send(&call));
    return call_accept(&call);
}
