/*
 * Functions on the library and the machine: init and shutdown, versions, and the ways to a GPU's handle. Nothing on a
 * GPU whose handle is known.
 */
#include "named.h"

#include <stdio.h>
#include <string.h>

#define OPCODE_INIT 0x0001
#define OPCODE_SHUTDOWN 0x0002
#define OPCODE_DRIVER_VERSION 0x0010
#define OPCODE_CUDA_VERSION 0x0011
#define OPCODE_COUNT 0x0012
#define OPCODE_UUID_OF_INDEX 0x0013

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
EXPORT nvmlReturn_t nvmlInit_v2(void);
EXPORT nvmlReturn_t nvmlInit(void);
EXPORT nvmlReturn_t nvmlShutdown(void);
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_v1_t *info, unsigned int length);
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);
EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device);

/* The flags ask for fewer GPUs or none: here no call opens one. */
nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    session_prepare();
    CALL(call);
    call_begin_init(&call, OPCODE_INIT);
    TRY(call_send(&call));
    session_count_up();
    nvmlReturn_t code = call_accept(&call);
    if (code != NVML_SUCCESS)
        (void)session_count_down();
    return code;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

/*
 * A process must be able to end its session after the simulator is gone, and however many calls keep that busy: only an
 * answered refusal of another kind keeps it open.
 */
nvmlReturn_t nvmlShutdown(void)
{
    CALL(call);
    TRY(call_begin(&call, OPCODE_SHUTDOWN));
    nvmlReturn_t code = call_send(&call);
    if (call.answered && code != NVML_ERROR_INSUFFICIENT_RESOURCES)
        return code;
    if (code == NVML_SUCCESS)
        (void)call_accept(&call);
    return session_count_down();
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    CALL(call);
    TRY(call_begin(&call, OPCODE_DRIVER_VERSION));
    NEED(version);
    TRY(call_send(&call));
    struct text text = take_text(&call.in);
    TRY(call_accept(&call));
    return copy_text(text, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return named_text("nvmlSystemGetNVMLVersion", NULL, 0, NOTHING, version, length);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_v1_t *info, unsigned int length)
{
    CHECK_VERSION(info, nvmlSystemDriverBranchInfo_v1_t, 1);
    unsigned int room = length < sizeof info->branch ? length : (unsigned int)sizeof info->branch;
    return named_text("nvmlSystemGetDriverBranch", NULL, 0, NOTHING, info->branch, room);
}

static nvmlReturn_t machine_u32(uint16_t opcode, uint32_t *out)
{
    CALL(call);
    TRY(call_begin(&call, opcode));
    NEED(out);
    TRY(call_send(&call));
    uint32_t value = take_u32(&call.in);
    TRY(call_accept(&call));
    *out = value;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    uint32_t value = 0;
    TRY(machine_u32(OPCODE_CUDA_VERSION, version ? &value : NULL));
    *version = (int)(value & INT32_MAX);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    return named_text("nvmlSystemGetProcessName", NULL, 0, NUMBERS(1, pid), name, length);
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
    return named_u32("nvmlUnitGetCount", NULL, 0, NOTHING, count, 1);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    return machine_u32(OPCODE_COUNT, count);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

/* Handles */

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    CALL(call);
    unsigned int slot;
    TRY(call_begin(&call, OPCODE_UUID_OF_INDEX));
    NEED(device);
    put_u32(&call.out, index);
    TRY(call_send(&call));
    struct text uuid = take_text(&call.in);
    TRY(call_accept(&call));
    TRY(slot_of_gpu(uuid, &slot));
    *device = gpu_handle(slot);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* By a text that names one GPU: the answer is its UUID; and the ids of a MIG device, if `migs` may come back. */
static nvmlReturn_t handle_by_text(const char *function, const char *text, bool migs, nvmlDevice_t *device)
{
    CALL(call);
    uint32_t count;
    unsigned int slot;
    TRY(named_begin(&call, function, NULL, 0));
    NEED(text && device);
    TRY(named_send(&call, TEXT(text), &count));
    uint64_t ids[2] = {NO_INSTANCE, NO_INSTANCE};
    for (uint32_t i = 0; i < count && i < 2; i++)
        ids[i] = take_u64(&call.in);
    struct text uuid = take_text(&call.in);
    bool is_mig = ids[0] != NO_INSTANCE || ids[1] != NO_INSTANCE;
    if (count != (migs ? 2 : 0) || ids[0] > UINT32_MAX || ids[1] > UINT32_MAX)
        call.in.failed = true;
    TRY(call_accept(&call));
    TRY(slot_of_gpu(uuid, &slot));
    nvmlDevice_t found = is_mig ? mig_handle(slot, (unsigned int)ids[0], (unsigned int)ids[1]) : gpu_handle(slot);
    if (!found)
        return NVML_ERROR_UNKNOWN;
    *device = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return handle_by_text("nvmlDeviceGetHandleByUUID", uuid, true, device);
}

/* What a binary UUID names is not in it: a GPU is tried first, as there are fewer. */
static nvmlReturn_t handle_by_bytes(const unsigned char *bytes, nvmlDevice_t *device)
{
    static const char *const prefixes[] = {"GPU", "MIG"};
    nvmlReturn_t code = NVML_ERROR_NOT_FOUND;
    for (size_t i = 0; i < 2 && (code == NVML_ERROR_NOT_FOUND || code == NVML_ERROR_INVALID_ARGUMENT); i++) {
        char text[UUID_BYTES];
        const unsigned char *b = bytes;
        snprintf(text, sizeof text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                 prefixes[i], b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                 b[14], b[15]);
        code = nvmlDeviceGetHandleByUUID(text, device);
    }
    return code;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device)
{
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(uuid && device);
    if (uuid->version != STRUCT_VERSION(nvmlUUID_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == UUID_TYPE_BINARY)
        return handle_by_bytes(uuid->value.bytes, device);
    NEED(uuid->type == UUID_TYPE_ASCII && memchr(uuid->value.str, 0, sizeof uuid->value.str));
    return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return handle_by_text("nvmlDeviceGetHandleByPciBusId_v2", bus_id, false, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return handle_by_text("nvmlDeviceGetHandleBySerial", serial, false, device);
}
