/*
 * The layout of a handle, and the table of the GPUs that handles name.
 *
 *   bits 63..48  a mark that no address of a process has: a handle that is followed by mistake faults at once
 *   bits 47..44  kind
 *   bits 43..32  slot
 *   bits 31..16  GPU instance, bits 15..0 compute instance; of an event set or a sample: its generation
 */
#include "handles.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert(sizeof(void *) == 8, "a handle needs 64 bits");

#define MARK 0x4E56ULL
#define MAX_GPUS 1024U /* slots are never given to another GPU: one process may meet several simulators */
#define MAX_ID 0xFFFEU
#define NO_ID 0xFFFFU

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char uuids[MAX_GPUS][UUID_BYTES];
/* A slot below it never changes again, so that looking behind a handle takes no lock. */
static atomic_uint uuid_count;

void handles_lock(void)
{
    pthread_mutex_lock(&lock);
}

void handles_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static void *handle_of(enum kind kind, unsigned int slot, uint32_t low)
{
    return (void *)(uintptr_t)(MARK << 48 | (uint64_t)kind << 44 | (uint64_t)slot << 32 | low);
}

nvmlReturn_t target_of(const void *handle, unsigned int takes, struct target *out)
{
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    unsigned int kind = bits >> 44 & 0xF, slot = bits >> 32 & 0xFFF, gi = bits >> 16 & 0xFFFF, ci = bits & 0xFFFF;
    if (bits >> 48 != MARK || !(takes & TAKES(kind)))
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (struct target){.kind = (enum kind)kind, .slot = slot, .gi = NO_INSTANCE, .ci = NO_INSTANCE};
    if (kind == KIND_EVENT_SET || kind == KIND_GPM_SAMPLE) {
        out->generation = (uint32_t)bits;
        return NVML_SUCCESS;
    }
    bool has_gi = kind != KIND_GPU, has_ci = kind == KIND_MIG || kind == KIND_COMPUTE_INSTANCE;
    if (slot >= atomic_load_explicit(&uuid_count, memory_order_acquire) || (gi == NO_ID) == has_gi ||
        (ci == NO_ID) == has_ci)
        return NVML_ERROR_INVALID_ARGUMENT;
    out->gpu = uuids[slot];
    out->gi = has_gi ? gi : NO_INSTANCE;
    out->ci = has_ci ? ci : NO_INSTANCE;
    return NVML_SUCCESS;
}

nvmlReturn_t slot_of_gpu(struct text uuid, unsigned int *slot)
{
    if (!uuid.size || uuid.size >= UUID_BYTES)
        return NVML_ERROR_UNKNOWN;
    nvmlReturn_t code = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    unsigned int count = atomic_load_explicit(&uuid_count, memory_order_relaxed), at = 0;
    while (at < count && (strlen(uuids[at]) != uuid.size || memcmp(uuids[at], uuid.bytes, uuid.size)))
        at++;
    if (at == MAX_GPUS) {
        code = NVML_ERROR_MEMORY;
    } else {
        if (at == count) {
            memcpy(uuids[at], uuid.bytes, uuid.size);
            atomic_store_explicit(&uuid_count, count + 1, memory_order_release);
        }
        *slot = at;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

nvmlDevice_t gpu_handle(unsigned int slot)
{
    return handle_of(KIND_GPU, slot, NO_ID << 16 | NO_ID);
}

nvmlDevice_t mig_handle(unsigned int slot, unsigned int gi, unsigned int ci)
{
    return gi > MAX_ID || ci > MAX_ID ? NULL : handle_of(KIND_MIG, slot, gi << 16 | ci);
}

nvmlGpuInstance_t gpu_instance_handle(unsigned int slot, unsigned int gi)
{
    return gi > MAX_ID ? NULL : handle_of(KIND_GPU_INSTANCE, slot, gi << 16 | NO_ID);
}

nvmlComputeInstance_t compute_instance_handle(unsigned int slot, unsigned int gi, unsigned int ci)
{
    return gi > MAX_ID || ci > MAX_ID ? NULL : handle_of(KIND_COMPUTE_INSTANCE, slot, gi << 16 | ci);
}

nvmlEventSet_t event_set_handle(unsigned int slot, unsigned int generation)
{
    return handle_of(KIND_EVENT_SET, slot, generation);
}

nvmlGpmSample_t gpm_sample_handle(unsigned int slot, unsigned int generation)
{
    return handle_of(KIND_GPM_SAMPLE, slot, generation);
}
