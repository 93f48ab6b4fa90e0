/*
 * Event sets. The simulator has one numbered log of events; a set is a list of what to look for, each from which number
 * on. A wait asks the simulator in slices, so that it notices when its set or the whole session has ended. A simulator
 * that says TIMEOUT before the time is up, as one told to fail these calls does, is asked again after a pause.
 */
#include "events.h"

#include "frames.h"
#include "named.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define OPCODE_WAIT_EVENT 0x0070
#define MAX_SETS 256U
#define MAX_REGISTRATIONS 128U
#define REGISTRATION_BYTES (sizeof(uint32_t) + UUID_BYTES + 2 * sizeof(uint64_t)) /* at most */
#define SLICE_MS 2000U /* below the silence after which a call asks whether the simulator lives */
#define PAUSE_MS 50     /* after an answer that came early; an event, and the end of the set, wait as long at most */
#define WITHOUT_END 0xFFFFFFFFU

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types);
EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms);
EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms);

struct registration {
    unsigned int slot; /* of the GPU */
    uint64_t types;    /* no type of a GPU is in two registrations of a set */
    uint64_t since;
};

struct event_set {
    bool used;
    unsigned int generation;
    unsigned int count;
    struct registration registrations[MAX_REGISTRATIONS];
};

struct event {
    unsigned int slot;
    uint64_t type, data, cursor;
    uint32_t gi, ci;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event_set sets[MAX_SETS];

void events_lock(void)
{
    pthread_mutex_lock(&lock);
}

void events_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static void free_locked(struct event_set *set)
{
    set->used = false;
    set->generation++;
    set->count = 0;
}

void events_forget_locked(void)
{
    for (unsigned int i = 0; i < MAX_SETS; i++)
        if (sets[i].used)
            free_locked(&sets[i]);
}

void events_forget(void)
{
    events_lock();
    events_forget_locked();
    events_unlock();
}

static struct event_set *set_locked(const struct target *target)
{
    if (target->slot >= MAX_SETS)
        return NULL;
    struct event_set *set = &sets[target->slot];
    return set->used && set->generation == target->generation ? set : NULL;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlReturn_t code = NVML_ERROR_MEMORY;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(set);
    events_lock();
    for (unsigned int i = 0; i < MAX_SETS && code != NVML_SUCCESS; i++) {
        if (sets[i].used)
            continue;
        sets[i].used = true;
        sets[i].count = 0;
        *set = event_set_handle(i, sets[i].generation);
        code = NVML_SUCCESS;
    }
    events_unlock();
    return code;
}

static nvmlReturn_t target_of_set(nvmlEventSet_t set, struct target *target)
{
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    return target_of(set, TAKES(KIND_EVENT_SET), target);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    struct target target;
    TRY(target_of_set(set, &target));
    events_lock();
    struct event_set *found = set_locked(&target);
    if (found)
        free_locked(found);
    events_unlock();
    return found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    uint64_t mask;
    TRY(named_u64("nvmlDeviceGetSupportedEventTypes", device, TAKES_DEVICE, NOTHING, types ? &mask : NULL, 1));
    *types = mask;
    return NVML_SUCCESS;
}

static nvmlReturn_t add_locked(struct event_set *set, unsigned int slot, uint64_t types, uint64_t since)
{
    for (unsigned int i = 0; i < set->count; i++)
        if (set->registrations[i].slot == slot)
            types &= ~set->registrations[i].types;
    if (!types)
        return NVML_SUCCESS;
    if (set->count == MAX_REGISTRATIONS)
        return NVML_ERROR_MEMORY;
    set->registrations[set->count++] = (struct registration){.slot = slot, .types = types, .since = since};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    struct target set_target, device_target;
    uint64_t cursor;
    TRY(target_of_set(set, &set_target));
    TRY(target_of(device, TAKES_DEVICE, &device_target));
    events_lock();
    bool lives = set_locked(&set_target);
    events_unlock();
    NEED(lives);
    TRY(named_u64("nvmlDeviceRegisterEvents", device, TAKES_DEVICE, NUMBERS(1, (int64_t)types), &cursor, 1));
    events_lock();
    struct event_set *found = set_locked(&set_target);
    nvmlReturn_t code = found ? add_locked(found, device_target.slot, types, cursor) : NVML_ERROR_INVALID_ARGUMENT;
    events_unlock();
    return code;
}

/* Waiting */

static bool put_registrations(struct call *call, const struct target *target)
{
    events_lock();
    const struct event_set *set = set_locked(target);
    put_u32(&call->out, set ? set->count : 0);
    for (unsigned int i = 0; set && i < set->count; i++) {
        struct target gpu;
        const struct registration *registration = &set->registrations[i];
        if (target_of(gpu_handle(registration->slot), TAKES_GPU, &gpu) != NVML_SUCCESS)
            call->out.failed = true;
        put_text(&call->out, call->out.failed ? "" : gpu.gpu);
        put_u64(&call->out, registration->types);
        put_u64(&call->out, registration->since);
    }
    events_unlock();
    return set;
}

static nvmlReturn_t ask(const struct target *target, uint32_t timeout_ms, struct event *event)
{
    CALL(call);
    TRY(call_begin(&call, OPCODE_WAIT_EVENT));
    call.lost = NVML_ERROR_GPU_IS_LOST;
    call.interruptible = true;
    TRY(call_reserve(&call, MAX_REGISTRATIONS * REGISTRATION_BYTES));
    NEED(put_registrations(&call, target));
    put_u32(&call.out, timeout_ms);
    TRY(call_send(&call));
    struct text gpu = take_text(&call.in);
    event->type = take_u64(&call.in);
    event->data = take_u64(&call.in);
    event->gi = take_u32(&call.in);
    event->ci = take_u32(&call.in);
    event->cursor = take_u64(&call.in);
    TRY(call_accept(&call));
    return slot_of_gpu(gpu, &event->slot);
}

/*
 * Whether the event is this wait's: another thread that waits on the set may have had it already. Only what the event
 * matches is read so far: a registration that came while this waited may want an event of before.
 */
static bool take_event(const struct target *target, const struct event *event, nvmlReturn_t *code)
{
    bool ours = false;
    events_lock();
    struct event_set *set = set_locked(target);
    *code = set ? NVML_ERROR_UNKNOWN : NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; set && i < set->count; i++) {
        struct registration *registration = &set->registrations[i];
        if (registration->slot != event->slot || !(registration->types & event->type))
            continue;
        *code = NVML_SUCCESS;
        ours = event->cursor > registration->since;
        if (ours)
            registration->since = event->cursor;
    }
    events_unlock();
    return ours;
}

/* Signals do not cut it short: a client with many would ask as often as without a pause. */
static void pause_until(int64_t until_ms)
{
    const struct timespec until = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

/*
 * Asks until the time is up, and once more then. What it asks ends with the set and the session, so that the wait does
 * so within a slice or a pause.
 */
static nvmlReturn_t wait_for(const struct target *target, unsigned int timeout_ms, struct event *event)
{
    int64_t until = clock_ms() + timeout_ms;
    for (;;) {
        int64_t left = timeout_ms == WITHOUT_END ? SLICE_MS : until - clock_ms();
        uint32_t slice = left <= 0 ? 0 : left < SLICE_MS ? (uint32_t)left : SLICE_MS;
        int64_t slice_end = clock_ms() + slice;
        nvmlReturn_t code = ask(target, slice, event);
        if (code == NVML_SUCCESS && (take_event(target, event, &code) || code != NVML_SUCCESS))
            return code;
        if (code != NVML_SUCCESS && code != NVML_ERROR_TIMEOUT)
            return code;
        if (left <= 0)
            return NVML_ERROR_TIMEOUT;
        int64_t now = clock_ms();
        if (code == NVML_ERROR_TIMEOUT && now < slice_end)
            pause_until(now + PAUSE_MS < slice_end ? now + PAUSE_MS : slice_end);
    }
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, unsigned int timeout_ms, nvmlEventData_t *data)
{
    struct target target;
    struct event event;
    TRY(target_of_set(set, &target));
    NEED(data);
    unsigned int epoch = session_epoch();
    nvmlReturn_t code = wait_for(&target, timeout_ms, &event);
    if (epoch != session_epoch())
        return NVML_ERROR_UNINITIALIZED;
    TRY(code);
    *data = (nvmlEventData_t){
        .device = gpu_handle(event.slot),
        .eventType = event.type,
        .eventData = event.data,
        .gpuInstanceId = event.gi,
        .computeInstanceId = event.ci,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return wait_event(set, timeout_ms, data);
}

/* The first version's struct ends before the instances. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    nvmlEventData_t all;
    TRY(wait_event(set, timeout_ms, data ? &all : NULL));
    memcpy(data, &all, offsetof(nvmlEventData_t, gpuInstanceId));
    return NVML_SUCCESS;
}
