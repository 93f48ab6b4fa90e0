/*
 * What a GPU or a MIG device says about itself: identity, memory, clocks, power, topology. device.def has the simple
 * shapes; here is what needs a struct. MIG's functions, processes, health and events have files of their own.
 */
#include "named.h"

#include <string.h>

#define OPCODE_MEMORY_INFO 0x001B

#define U32_AS(function, name)                                                 \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *value);    \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *value)            \
    {                                                                          \
        return named_u32(#name, device, TAKES_DEVICE, NOTHING, value, 1);      \
    }
#define U32(function) U32_AS(function, function)
#define U64_AS(function, name)                                                    \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned long long *value); \
    nvmlReturn_t function(nvmlDevice_t device, unsigned long long *value)         \
    {                                                                             \
        uint64_t number;                                                          \
        TRY(named_u64(#name, device, TAKES_DEVICE, NOTHING, value ? &number : NULL, 1)); \
        *value = number;                                                          \
        return NVML_SUCCESS;                                                      \
    }
#define U64(function) U64_AS(function, function)
#define U32_FOR(function)                                                                       \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int what, unsigned int *value);  \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int what, unsigned int *value)          \
    {                                                                                           \
        return named_u32(#function, device, TAKES_DEVICE, NUMBERS(1, what), value, 1);          \
    }
#define U32_PAIR(function)                                                                       \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *first, unsigned int *second); \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *first, unsigned int *second)        \
    {                                                                                            \
        return named_pair(#function, device, first, second);                                     \
    }
#define STRING(function)                                                                   \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned int length);    \
    nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned int length)            \
    {                                                                                      \
        return named_text(#function, device, TAKES_DEVICE, NOTHING, text, length);         \
    }
#define SET(function)                                                             \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int value);        \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int value)                \
    {                                                                             \
        return named_nothing(#function, device, TAKES_DEVICE, NUMBERS(1, value)); \
    }

static nvmlReturn_t named_pair(const char *function, nvmlDevice_t device, unsigned int *first, unsigned int *second)
{
    unsigned int numbers[2];
    TRY(named_u32(function, device, TAKES_DEVICE, NOTHING, first && second ? numbers : NULL, 2));
    *first = numbers[0];
    *second = numbers[1];
    return NVML_SUCCESS;
}

#include "device.def"

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version);
EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_v1_t *mode);
EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci);
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory);
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization);
EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature);
EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *clock);
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set);
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                        unsigned int scope);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                unsigned int scope);
EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned int *level);
EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned int index,
                                           unsigned int *status);

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    return named_text("nvmlDeviceGetGspFirmwareVersion", device, TAKES_DEVICE, NOTHING, version,
                      GSP_FIRMWARE_VERSION_BYTES);
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_v1_t *mode)
{
    CHECK_VERSION(mode, nvmlDeviceAddressingMode_v1_t, 1);
    return named_u32("nvmlDeviceGetAddressingMode", device, TAKES_DEVICE, NOTHING, &mode->value, 1);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    int numbers[2];
    TRY(named_i32("nvmlDeviceGetCudaComputeCapability", device, TAKES_DEVICE, NOTHING, major && minor ? numbers : NULL,
                  2));
    *major = numbers[0];
    *minor = numbers[1];
    return NVML_SUCCESS;
}

/* PCI */

static nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    CALL(call);
    uint32_t count;
    uint32_t numbers[5];
    TRY(named_begin(&call, "nvmlDeviceGetPciInfo_v3", device, TAKES_DEVICE));
    NEED(pci);
    TRY(named_send(&call, NOTHING, &count));
    take_small(&call.in, numbers, 5);
    nvmlPciInfo_t info = {.domain = numbers[0], .bus = numbers[1], .device = numbers[2]};
    info.pciDeviceId = numbers[3];
    info.pciSubSystemId = numbers[4];
    take_text_into(&call.in, info.busId, sizeof info.busId);
    size_t size = strlen(info.busId);
    /* The older form has four digits of the domain where the newer one has eight. */
    const char *legacy = size >= sizeof info.busIdLegacy ? info.busId + 4 : info.busId;
    if (count != 5 || strlen(legacy) >= sizeof info.busIdLegacy)
        call.in.failed = true;
    TRY(call_accept(&call));
    memcpy(info.busIdLegacy, legacy, strlen(legacy) + 1);
    *pci = info;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(device, pci);
}

/* The struct of the older versions ends before busId. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t info;
    TRY(pci_info(device, pci ? &info : NULL));
    memcpy(pci, &info, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

/* Memory and load */

static nvmlReturn_t gpu_memory(nvmlDevice_t device, nvmlMemory_t *memory)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_MEMORY_INFO, device));
    TRY(call_send(&call));
    nvmlMemory_t info = {.total = take_u64(&call.in)};
    info.free = take_u64(&call.in);
    info.used = take_u64(&call.in);
    TRY(call_accept(&call));
    *memory = info;
    return NVML_SUCCESS;
}

static nvmlReturn_t memory_v2(nvmlDevice_t device, uint64_t numbers[4])
{
    return named_u64("nvmlDeviceGetMemoryInfo_v2", device, TAKES_DEVICE, NOTHING, numbers, 4);
}

/* The first version has no word for reserved memory and counts it as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct target target;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(memory);
    TRY(target_of(device, TAKES_DEVICE, &target));
    if (target.kind == KIND_GPU)
        return gpu_memory(device, memory);
    uint64_t numbers[4];
    TRY(memory_v2(device, numbers));
    *memory = (nvmlMemory_t){.total = numbers[0], .free = numbers[2], .used = numbers[1] + numbers[3]};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    uint64_t numbers[4];
    CHECK_VERSION(memory, nvmlMemory_v2_t, 2);
    TRY(memory_v2(device, numbers));
    memory->total = numbers[0];
    memory->reserved = numbers[1];
    memory->free = numbers[2];
    memory->used = numbers[3];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    uint64_t numbers[3];
    TRY(named_u64("nvmlDeviceGetBAR1MemoryInfo", device, TAKES_DEVICE, NOTHING, memory ? numbers : NULL, 3));
    *memory = (nvmlBAR1Memory_t){.bar1Total = numbers[0], .bar1Free = numbers[1], .bar1Used = numbers[2]};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    unsigned int numbers[2];
    TRY(named_u32("nvmlDeviceGetUtilizationRates", device, TAKES_DEVICE, NOTHING, utilization ? numbers : NULL, 2));
    *utilization = (nvmlUtilization_t){.gpu = numbers[0], .memory = numbers[1]};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    CHECK_VERSION(temperature, nvmlTemperature_v1_t, 1);
    return named_i32("nvmlDeviceGetTemperature", device, TAKES_DEVICE, NUMBERS(1, temperature->sensorType),
                     &temperature->temperature, 1);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *clock)
{
    return named_u32("nvmlDeviceGetClock", device, TAKES_DEVICE, NUMBERS(2, type, id), clock, 1);
}

/* Neighbourhood */

static nvmlReturn_t affinity(const char *function, nvmlDevice_t device, struct arguments arguments, unsigned long *set)
{
    int64_t words = arguments.numbers[0];
    bool fits = set && words && words <= MAX_LIST;
    /* An unsigned long has 64 bits wherever NVML is. */
    return named_u64(function, device, TAKES_DEVICE, arguments, fits ? set : NULL, fits ? (uint32_t)words : 1);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    return affinity("nvmlDeviceGetCpuAffinity", device, NUMBERS(1, words), set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                 unsigned int scope)
{
    return affinity("nvmlDeviceGetCpuAffinityWithinScope", device, NUMBERS(2, words, scope), set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                         unsigned int scope)
{
    return affinity("nvmlDeviceGetMemoryAffinity", device, NUMBERS(2, words, scope), set);
}

/* On two GPUs: the second one travels as the text. */
static nvmlReturn_t between(const char *function, nvmlDevice_t device, nvmlDevice_t other, struct arguments arguments,
                            unsigned int *out)
{
    struct target target;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    TRY(target_of(other, TAKES_GPU, &target));
    arguments.text = target.gpu;
    return named_u32(function, device, TAKES_DEVICE, arguments, out, 1);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned int *level)
{
    return between("nvmlDeviceGetTopologyCommonAncestor", device, other, NOTHING, level);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned int index, unsigned int *status)
{
    return between("nvmlDeviceGetP2PStatus", device, other, NUMBERS(1, index), status);
}
