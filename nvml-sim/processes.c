/*
 * The lists of processes on a device, in the struct of each version: compute, graphics and MPS clients alike.
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
