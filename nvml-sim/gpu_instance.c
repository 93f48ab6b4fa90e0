/*
 * GPU instances: profiles, placements, and the instances of a GPU. A profile is asked for by NVML's enum or by its id,
 * and told in the struct of the version that the caller has.
 */
#include "mig.h"

#include "named.h"

#include <string.h>

#define OPCODE_PROFILE_INFO 0x0032
#define OPCODE_PLACEMENTS 0x0033
#define OPCODE_REMAINING_CAPACITY 0x0034
#define OPCODE_CREATE 0x0035
#define OPCODE_LIST 0x0036
#define OPCODE_BY_ID 0x0037
#define OPCODE_DESTROY 0x0038
#define GPU_INSTANCE_BYTES 16
#define PLACEMENT_BYTES 8

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                        nvmlGpuInstanceProfileInfo_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profile_id,
                                                             nvmlGpuInstanceProfileInfo_v2_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profile_id,
                                                               nvmlGpuInstancePlacement_t *placements,
                                                               unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile_id,
                                                                  nvmlGpuInstancePlacement_t *placements,
                                                                  unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profile_id,
                                                              unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id,
                                                nvmlGpuInstance_t *instance);
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
                                                             const nvmlGpuInstancePlacement_t *placement,
                                                             nvmlGpuInstance_t *instance);
EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id,
                                              nvmlGpuInstance_t *instances, unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance);
EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info);

/* Profiles */

void take_profile_name(struct reader *in, char name[96])
{
    static const char prefix[] = "MIG ";
    struct text text = take_text(in);
    /* Drivers write "MIG 1g.5gb"; the simulator knows profiles as "1g.5gb". */
    size_t skip = text.size >= 4 && !memcmp(text.bytes, prefix, 4) ? 0 : 4;
    if (text.size + skip >= 96) {
        in->failed = true;
        return;
    }
    memcpy(name, prefix, skip);
    memcpy(name + skip, text.bytes, text.size);
    name[skip + text.size] = 0;
}

static void put_profile_numbers(nvmlGpuInstanceProfileInfo_v2_t *info, const uint32_t numbers[9])
{
    info->id = numbers[0];
    info->sliceCount = numbers[1];
    info->instanceCount = numbers[2];
    info->multiprocessorCount = numbers[3];
    info->copyEngineCount = numbers[4];
    info->decoderCount = numbers[5];
    info->encoderCount = numbers[6];
    info->jpegCount = numbers[7];
    info->ofaCount = numbers[8];
}

static nvmlReturn_t profile_by_enum(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    CALL(call);
    uint32_t numbers[9];
    TRY(call_gpu(&call, OPCODE_PROFILE_INFO, device));
    put_u32(&call.out, profile);
    TRY(call_send(&call));
    memset(info, 0, sizeof *info);
    numbers[0] = take_u32(&call.in);
    take_profile_name(&call.in, info->name);
    for (size_t i = 1; i < 9; i++)
        numbers[i] = take_u32(&call.in);
    put_profile_numbers(info, numbers);
    info->memorySizeMB = take_u64(&call.in);
    return call_accept(&call);
}

static nvmlReturn_t profile_by_id(nvmlDevice_t device, unsigned int id, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    CALL(call);
    uint32_t numbers[9], count;
    TRY(named_begin(&call, "nvmlDeviceGetGpuInstanceProfileInfoByIdV", device, TAKES_GPU));
    TRY(named_send(&call, NUMBERS(1, id), &count));
    memset(info, 0, sizeof *info);
    take_small(&call.in, numbers, 9);
    put_profile_numbers(info, numbers);
    info->memorySizeMB = take_u64(&call.in);
    take_profile_name(&call.in, info->name);
    if (count != 10)
        call.in.failed = true;
    return call_accept(&call);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    nvmlGpuInstanceProfileInfo_v2_t v2;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    TRY(profile_by_enum(device, profile, &v2));
    /* The first version is what stands between the newer one's version word and its name. */
    memcpy(info, &v2.id, offsetof(nvmlGpuInstanceProfileInfo_t, memorySizeMB));
    info->memorySizeMB = v2.memorySizeMB;
    return NVML_SUCCESS;
}

static void write_profile_v3(nvmlGpuInstanceProfileInfo_v3_t *v3, const nvmlGpuInstanceProfileInfo_v2_t *v2)
{
    v3->id = v2->id;
    v3->sliceCount = v2->sliceCount;
    v3->instanceCount = v2->instanceCount;
    v3->multiprocessorCount = v2->multiprocessorCount;
    v3->copyEngineCount = v2->copyEngineCount;
    v3->decoderCount = v2->decoderCount;
    v3->encoderCount = v2->encoderCount;
    v3->jpegCount = v2->jpegCount;
    v3->ofaCount = v2->ofaCount;
    v3->memorySizeMB = v2->memorySizeMB;
    memcpy(v3->name, v2->name, sizeof v3->name);
    v3->capabilities = 0;
}

/* The version word tells which of the structs `info` is. */
static nvmlReturn_t profile_versioned(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info,
                                      nvmlReturn_t (*ask)(nvmlDevice_t, unsigned int,
                                                          nvmlGpuInstanceProfileInfo_v2_t *))
{
    nvmlGpuInstanceProfileInfo_v2_t answer;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    unsigned int version = info->version;
    if (version != STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2) &&
        version != STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(ask(device, profile, &answer));
    answer.version = version;
    if (version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2))
        *info = answer;
    else
        write_profile_v3((nvmlGpuInstanceProfileInfo_v3_t *)(void *)info, &answer);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    return profile_versioned(device, profile, info, profile_by_enum);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profile_id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    return profile_versioned(device, profile_id, info, profile_by_id);
}

/*
 * NVML has `count` of this and of the lists of instances as a result alone: the caller has learnt beforehand how many
 * there can be, and its buffer is as long. A simulator that says more than can be is not believed.
 */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile_id,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_PLACEMENTS, device));
    NEED(count);
    put_u32(&call.out, profile_id);
    TRY(call_send(&call));
    uint32_t found = take_count(&call.in, PLACEMENT_BYTES);
    call.in.failed |= found > MOST_INSTANCES;
    struct reader items = call.in;
    for (uint32_t i = 0; i < found; i++)
        (void)take_u64(&call.in);
    TRY(call_accept(&call));
    *count = found;
    for (uint32_t i = 0; placements && i < found; i++) {
        placements[i].start = take_u32(&items);
        placements[i].size = take_u32(&items);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profile_id,
                                                        nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile_id, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profile_id,
                                                       unsigned int *count)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_REMAINING_CAPACITY, device));
    NEED(count);
    put_u32(&call.out, profile_id);
    TRY(call_send(&call));
    uint32_t left = take_u32(&call.in);
    TRY(call_accept(&call));
    *count = left;
    return NVML_SUCCESS;
}

/* GPU instances */

struct instance {
    uint32_t id, profile_id;
    nvmlPlacement_t placement;
};

static struct instance take_instance(struct reader *in)
{
    struct instance instance = {.id = take_u32(in)};
    instance.profile_id = take_u32(in);
    instance.placement.start = take_u32(in);
    instance.placement.size = take_u32(in);
    return instance;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_CREATE, device));
    NEED(placement && instance);
    put_u32(&call.out, profile_id);
    put_u32(&call.out, placement->start);
    put_u32(&call.out, placement->size);
    TRY(call_send(&call));
    struct instance made = take_instance(&call.in);
    nvmlGpuInstance_t handle = gpu_instance_handle(call.target.slot, made.id);
    call.in.failed |= !handle;
    TRY(call_accept(&call));
    *instance = handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *instance)
{
    struct target target;
    unsigned int id;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(instance);
    TRY(target_of(device, TAKES_GPU, &target));
    TRY(named_u32("nvmlDeviceCreateGpuInstance", device, TAKES_GPU, NUMBERS(1, profile_id), &id, 1));
    nvmlGpuInstance_t handle = gpu_instance_handle(target.slot, id);
    if (!handle)
        return NVML_ERROR_UNKNOWN;
    *instance = handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    CALL(call);
    TRY(call_gpu_instance(&call, OPCODE_DESTROY, instance));
    TRY(call_send(&call));
    return call_accept(&call);
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *instances,
                                       unsigned int *count)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_LIST, device));
    NEED(instances && count);
    put_u32(&call.out, profile_id);
    TRY(call_send(&call));
    uint32_t found = take_count(&call.in, GPU_INSTANCE_BYTES);
    call.in.failed |= found > MOST_INSTANCES;
    struct reader items = call.in;
    for (uint32_t i = 0; i < found; i++)
        call.in.failed |= !gpu_instance_handle(call.target.slot, take_instance(&call.in).id);
    TRY(call_accept(&call));
    if (found > 1) { /* there is room for one in any case */
        nvmlGpuInstanceProfileInfo_v2_t profile;
        TRY(profile_by_id(device, profile_id, &profile));
        if (found > profile.instanceCount)
            return NVML_ERROR_UNKNOWN;
    }
    *count = found;
    for (uint32_t i = 0; i < found; i++)
        instances[i] = gpu_instance_handle(call.target.slot, take_instance(&items).id);
    return NVML_SUCCESS;
}

static nvmlReturn_t instance_by_id(nvmlDevice_t device, unsigned int id, struct instance *out)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_BY_ID, device));
    put_u32(&call.out, id);
    TRY(call_send(&call));
    *out = take_instance(&call.in);
    call.in.failed |= out->id != id;
    return call_accept(&call);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    struct target target;
    struct instance found;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(instance);
    TRY(target_of(device, TAKES_GPU, &target));
    TRY(instance_by_id(device, id, &found));
    nvmlGpuInstance_t handle = gpu_instance_handle(target.slot, id);
    if (!handle)
        return NVML_ERROR_UNKNOWN;
    *instance = handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct target target;
    struct instance found;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    TRY(target_of(instance, TAKES(KIND_GPU_INSTANCE), &target));
    TRY(instance_by_id(gpu_handle(target.slot), target.gi, &found));
    info->device = gpu_handle(target.slot);
    info->id = found.id;
    info->profileId = found.profile_id;
    info->placement = found.placement;
    return NVML_SUCCESS;
}
