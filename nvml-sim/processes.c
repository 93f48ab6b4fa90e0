/*
 * The lists of processes on a device, in the struct of each version, for compute, graphics and MPS clients alike; and
 * what each of them uses of it.
 */
#include "named.h"

#define NUMBERS_PER_PROCESS 4

/* `infos` is an array of v1 or v2 structs; only as many as `*count` says there is room for. */
static nvmlReturn_t processes_of(const char *function, nvmlDevice_t device, unsigned int *count, void *infos,
                                 bool is_v1)
{
    CALL(call);
    uint32_t numbers;
    TRY(named_begin(&call, function, device, TAKES_DEVICE));
    NEED(count && (infos || !*count));
    TRY(named_send(&call, NOTHING, &numbers));
    call.in.failed |= numbers % NUMBERS_PER_PROCESS != 0;
    struct reader items = call.in;
    for (uint32_t i = 0; i < numbers; i++)
        call.in.failed |= take_u64(&call.in) > UINT32_MAX && i % NUMBERS_PER_PROCESS != 1;
    (void)take_text(&call.in);
    TRY(call_accept(&call));
    unsigned int room = *count;
    *count = numbers / NUMBERS_PER_PROCESS;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < *count; i++) {
        nvmlProcessInfo_v2_t info = {.pid = (unsigned int)take_u64(&items)};
        info.usedGpuMemory = take_u64(&items);
        info.gpuInstanceId = (unsigned int)take_u64(&items);
        info.computeInstanceId = (unsigned int)take_u64(&items);
        if (is_v1)
            ((nvmlProcessInfo_v1_t *)infos)[i] = (nvmlProcessInfo_v1_t){info.pid, info.usedGpuMemory};
        else
            ((nvmlProcessInfo_v2_t *)infos)[i] = info;
    }
    return NVML_SUCCESS;
}

#define PROCESSES(symbol, name, type, is_v1)                                                    \
    EXPORT nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos);          \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos)                  \
    {                                                                                           \
        return processes_of(#name, device, count, infos, is_v1);                                \
    }
#define ALL_VERSIONS(function)                                                   \
    PROCESSES(function, function##_v3, nvmlProcessInfo_v1_t, true)               \
    PROCESSES(function##_v2, function##_v3, nvmlProcessInfo_v2_t, false)         \
    PROCESSES(function##_v3, function##_v3, nvmlProcessInfo_v2_t, false)

ALL_VERSIONS(nvmlDeviceGetComputeRunningProcesses)
ALL_VERSIONS(nvmlDeviceGetGraphicsRunningProcesses)
ALL_VERSIONS(nvmlDeviceGetMPSComputeRunningProcesses)

#define NUMBERS_PER_SAMPLE 6
#define TIME_OF_SAMPLE 1 /* of its numbers, the one of 64 bits */

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned int *count, unsigned long long lastSeenTimeStamp);

/* No array asks for the count alone, which comes with INSUFFICIENT_SIZE. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long lastSeenTimeStamp)
{
    CALL(call);
    uint32_t numbers;
    int64_t since = lastSeenTimeStamp > INT64_MAX ? INT64_MAX : (int64_t)lastSeenTimeStamp;
    TRY(named_begin(&call, "nvmlDeviceGetProcessUtilization", device, TAKES_DEVICE));
    NEED(count);
    TRY(named_send(&call, NUMBERS(1, since), &numbers));
    call.in.failed |= numbers % NUMBERS_PER_SAMPLE != 0;
    struct reader items = call.in;
    for (uint32_t i = 0; i < numbers; i++)
        call.in.failed |= take_u64(&call.in) > UINT32_MAX && i % NUMBERS_PER_SAMPLE != TIME_OF_SAMPLE;
    (void)take_text(&call.in);
    TRY(call_accept(&call));
    unsigned int room = samples ? *count : 0;
    *count = numbers / NUMBERS_PER_SAMPLE;
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < *count; i++) {
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = (unsigned int)take_u64(&items)};
        samples[i].timeStamp = take_u64(&items);
        samples[i].smUtil = (unsigned int)take_u64(&items);
        samples[i].memUtil = (unsigned int)take_u64(&items);
        samples[i].encUtil = (unsigned int)take_u64(&items);
        samples[i].decUtil = (unsigned int)take_u64(&items);
    }
    return NVML_SUCCESS;
}
