/*
 * What tells whether a GPU is well: ECC, remapped rows, field values, and its place in a fabric. Events are in events.c.
 */
#include "named.h"

#include <string.h>
#include <time.h>

#define OPCODE_FABRIC_INFO 0x001E
#define OPCODE_FIELD_VALUES 0x001F
#define OPCODE_ECC_MODE 0x0053
#define OPCODE_TOTAL_ECC_ERRORS 0x0054
#define OPCODE_REMAPPED_ROWS 0x0055
#define FIELD_VALUE_BYTES 12
#define SRAM_NUMBERS 12

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                unsigned long long *count);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                    unsigned int location, unsigned long long *count);
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                              unsigned int *uncorrectable, unsigned int *pending,
                                              unsigned int *failure);
EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values);
EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *status);
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info);
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info);

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_ECC_MODE, device));
    NEED(current && pending);
    TRY(call_send(&call));
    unsigned int now = take_u32(&call.in), then = take_u32(&call.in);
    TRY(call_accept(&call));
    *current = now;
    *pending = then;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                         unsigned long long *count)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_TOTAL_ECC_ERRORS, device));
    NEED(count);
    put_u32(&call.out, error);
    put_u32(&call.out, counter);
    TRY(call_send(&call));
    uint64_t errors = take_u64(&call.in);
    TRY(call_accept(&call));
    *count = errors;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                             unsigned int location, unsigned long long *count)
{
    uint64_t errors;
    TRY(named_u64("nvmlDeviceGetMemoryErrorCounter", device, TAKES_DEVICE, NUMBERS(3, error, counter, location),
                  count ? &errors : NULL, 1));
    *count = errors;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failure)
{
    CALL(call);
    uint32_t numbers[4];
    TRY(call_gpu(&call, OPCODE_REMAPPED_ROWS, device));
    NEED(correctable && uncorrectable && pending && failure);
    TRY(call_send(&call));
    for (size_t i = 0; i < 4; i++)
        numbers[i] = take_u32(&call.in);
    TRY(call_accept(&call));
    *correctable = numbers[0];
    *uncorrectable = numbers[1];
    *pending = numbers[2];
    *failure = numbers[3];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    unsigned int n[5];
    TRY(named_u32("nvmlDeviceGetRowRemapperHistogram", device, TAKES_DEVICE, NOTHING, values ? n : NULL, 5));
    *values = (nvmlRowRemapperHistogramValues_t){.max = n[0], .high = n[1], .partial = n[2], .low = n[3], .none = n[4]};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *status)
{
    uint64_t numbers[SRAM_NUMBERS];
    CHECK_VERSION(status, nvmlEccSramErrorStatus_v1_t, 1);
    TRY(named_u64("nvmlDeviceGetSramEccErrorStatus", device, TAKES_DEVICE, NOTHING, numbers, SRAM_NUMBERS));
    for (size_t i = 0; i < SRAM_NUMBERS - 1; i++)
        status->counts[i] = numbers[i];
    status->bThresholdExceeded = numbers[SRAM_NUMBERS - 1] != 0;
    return NVML_SUCCESS;
}

/* Each field has a code of its own: the call succeeds where a field is not supported. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_FIELD_VALUES, device));
    NEED(values && count > 0 && count <= (int)MAX_LIST);
    TRY(call_reserve(&call, (size_t)count * sizeof(uint32_t)));
    put_u32(&call.out, (uint32_t)count);
    for (int i = 0; i < count; i++)
        put_u32(&call.out, values[i].fieldId);
    TRY(call_send(&call));
    uint32_t found = take_count(&call.in, FIELD_VALUE_BYTES);
    call.in.failed |= found != (uint32_t)count;
    struct reader items = call.in;
    for (uint32_t i = 0; i < found; i++) {
        (void)take_u32(&call.in);
        (void)take_u64(&call.in);
    }
    TRY(call_accept(&call));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (uint32_t i = 0; i < found; i++) {
        bool present = take_u32(&items) != 0;
        values[i].value.ullVal = take_u64(&items);
        values[i].valueType = VALUE_TYPE_UNSIGNED_LONG_LONG;
        values[i].nvmlReturn = present ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
    }
    return NVML_SUCCESS;
}

/* Fabric */

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* Reads "" or a UUID; fails on anything else. */
static void take_uuid(struct reader *in, unsigned char bytes[16])
{
    struct text text = take_text(in);
    size_t digits = 0;
    memset(bytes, 0, 16);
    for (size_t i = 0; i < text.size; i++) {
        int digit = hex_digit(text.bytes[i]);
        if (text.bytes[i] == '-')
            continue;
        if (digit < 0 || digits >= 32) {
            in->failed = true;
            return;
        }
        bytes[digits / 2] = (unsigned char)(bytes[digits / 2] << 4 | digit);
        digits++;
    }
    in->failed |= digits != 0 && digits != 32;
}

static nvmlReturn_t fabric_of(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    CALL(call);
    TRY(call_gpu(&call, OPCODE_FABRIC_INFO, device));
    TRY(call_send(&call));
    memset(info, 0, sizeof *info);
    take_uuid(&call.in, info->clusterUuid);
    info->cliqueId = take_u32(&call.in);
    uint32_t state = take_u32(&call.in);
    call.in.failed |= state > UINT8_MAX;
    info->state = (unsigned char)state;
    info->status = (nvmlReturn_t)take_u32(&call.in);
    return call_accept(&call);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    nvmlGpuFabricInfo_t answer;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    TRY(fabric_of(device, &answer));
    *info = answer;
    return NVML_SUCCESS;
}

/*
 * `info` is a v2 struct, which lacks the last byte, where its version word says so. Health words of zero: nothing known
 * about it.
 */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
    nvmlGpuFabricInfo_t answer;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(info);
    bool is_v3 = info->version == STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3);
    if (!is_v3 && info->version != STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(fabric_of(device, &answer));
    memcpy(info->clusterUuid, answer.clusterUuid, sizeof info->clusterUuid);
    info->status = answer.status;
    info->cliqueId = answer.cliqueId;
    info->state = answer.state;
    info->healthMask = 0;
    if (is_v3)
        info->healthSummary = 0;
    return NVML_SUCCESS;
}
