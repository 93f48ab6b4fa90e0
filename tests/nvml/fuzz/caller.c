#include "caller.h"

#include "abi.h"
#include "rows.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ROWS 1024
#define MOST_ITEMS 24U
#define LONGEST_CALL_S 60 /* nothing in here may wait longer, whatever the simulator does */

typedef uintptr_t word;
typedef word (*any_function)(word, word, word, word, word, word, word, word);

struct caller {
    uint64_t random;
    word device, mig_device, instance, compute, events, sample;
    char uuid[96], serial[96]; /* of `device` */
};

atomic_ulong calls_done, calls_succeeded;

static atomic_ulong successes[MOST_ROWS];

static const unsigned int numbers[] = {0, 1, 2, 3, 4, 7, 9, 14, 19, 63, 255, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
static const word bad_handles[] = {0, 1, 2, 0xFFF, 0xDEADBEEF, (word)-1, (word)1 << 63};
static const char *const texts[] = {
    "GPU-a3e11935-b0a6-5b32-b1cb-ea7e9d042d93", "MIG-a3e11935-b0a6-5b32-b1cb-ea7e9d042d93",
    "MIG-GPU-a3e11935-b0a6-5b32-b1cb-ea7e9d042d93/1/0", "00000000:07:00.0", "0000:07:00.0", "07:00.0", "GPU-", "",
    "\xff\xfe", "%s%n", "1320219000000",
};

#define PICK(caller, list) ((list)[draw(caller) % (sizeof(list) / sizeof((list)[0]))])

static unsigned int draw(struct caller *caller)
{
    caller->random ^= caller->random << 13;
    caller->random ^= caller->random >> 7;
    caller->random ^= caller->random << 17;
    return (unsigned int)(caller->random >> 32);
}

static void fail(const char *name, const char *what)
{
    fprintf(stderr, "%s %s\n", name, what);
    abort();
}

static any_function find(const char *name)
{
    any_function function;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(&function, &symbol, sizeof function);
    return function;
}

/* One call's arguments and the memory behind them, each of exactly its size so that the sanitizer sees a byte too many. */
struct prepared {
    word values[MOST_ARGUMENTS];
    void *memory[MOST_ARGUMENTS];
    size_t sizes[MOST_ARGUMENTS];
    unsigned int capacity, length;
};

static word handle(struct caller *caller, enum kind kind)
{
    switch (kind) {
    case KIND_DEVICE:
        return draw(caller) % 3 && caller->device ? caller->device : caller->mig_device;
    case KIND_INSTANCE:
        return caller->instance;
    case KIND_COMPUTE:
        return caller->compute;
    case KIND_SAMPLE:
        return caller->sample;
    default:
        return caller->events;
    }
}

static word bad_handle(struct caller *caller)
{
    const word wrong_kinds[] = {caller->device,  caller->mig_device, caller->instance,
                                caller->compute, caller->events,     caller->sample};
    return draw(caller) % 2 ? PICK(caller, bad_handles) : PICK(caller, wrong_kinds);
}

static size_t memory_needed(const struct argument *argument, const struct prepared *prepared)
{
    switch (argument->kind) {
    case KIND_TEXT_OUT:
        return prepared->length;
    case KIND_OUT:
    case KIND_VERSIONED:
    case KIND_IN:
        return argument->size;
    case KIND_LIST:
        return argument->size * prepared->capacity;
    case KIND_WHOLE_LIST:
        return argument->size * MOST_INSTANCES;
    case KIND_COUNT:
        return sizeof(unsigned int);
    case KIND_DEVICE_OUT:
    case KIND_INSTANCE_OUT:
    case KIND_COMPUTE_OUT:
    case KIND_EVENTS_OUT:
    case KIND_SAMPLE_OUT:
        return sizeof(word);
    default:
        return 0;
    }
}

static void fill_samples(struct caller *caller, nvmlGpmMetricsGet_t *request, bool bad)
{
    const word samples[] = {caller->sample, bad ? bad_handle(caller) : caller->sample};
    memcpy(&request->sample1, &samples[0], sizeof samples[0]);
    memcpy(&request->sample2, &samples[1], sizeof samples[1]);
    if (bad)
        request->numMetrics = PICK(caller, numbers);
    request->metrics[0].metricId = draw(caller) % 12;
}

static void fill(struct caller *caller, const struct argument *argument, struct prepared *prepared, size_t at, bool bad)
{
    unsigned char *memory = prepared->memory[at];
    size_t size = prepared->sizes[at];
    memset(memory, 0xA5, size);
    if (argument->kind == KIND_IN) {
        /* A placement: where and how large. */
        const unsigned int placement[] = {bad ? PICK(caller, numbers) : draw(caller) % 8, bad ? PICK(caller, numbers) : 1};
        memcpy(memory, placement, size < sizeof placement ? size : sizeof placement);
    } else if (argument->kind == KIND_VERSIONED) {
        unsigned int version = (unsigned int)argument->size | argument->version << 24;
        if (argument->version & BARE_VERSION)
            version = argument->version & ~BARE_VERSION;
        if (bad)
            version = draw(caller) % 2 ? version ^ (1U << draw(caller) % 32) : PICK(caller, numbers);
        memset(memory, 0, size);
        memcpy(memory, &version, sizeof version);
        unsigned int second = draw(caller) % 3;
        if (size >= 2 * sizeof second)
            memcpy(memory + sizeof version, &second, sizeof second);
        if (size == sizeof(nvmlGpmMetricsGet_t))
            fill_samples(caller, (nvmlGpmMetricsGet_t *)(void *)memory, bad);
        if (size == sizeof(nvmlUUID_v1_t))
            memcpy(((nvmlUUID_v1_t *)(void *)memory)->value.str, caller->uuid, sizeof((nvmlUUID_v1_t *)0)->value.str);
    } else if (argument->kind == KIND_COUNT) {
        memcpy(memory, &prepared->capacity, sizeof prepared->capacity);
    } else if (argument->kind == KIND_LIST && argument->size == sizeof(nvmlFieldValue_t)) {
        for (unsigned int i = 0; i < prepared->capacity; i++) {
            unsigned int field = draw(caller) % 2 ? 184 : PICK(caller, numbers);
            memcpy(memory + i * argument->size, &field, sizeof field);
        }
    }
}

static const char *text_in(struct caller *caller)
{
    unsigned int which = draw(caller) % 4;
    return which == 0 ? caller->uuid : which == 1 ? caller->serial : PICK(caller, texts);
}

static word by_value(struct caller *caller, const struct argument *argument, const struct prepared *prepared, bool bad)
{
    switch (argument->kind) {
    case KIND_DEVICE:
    case KIND_INSTANCE:
    case KIND_COMPUTE:
    case KIND_EVENTS:
    case KIND_SAMPLE:
        return bad ? bad_handle(caller) : handle(caller, argument->kind);
    case KIND_PROFILE:
        return bad ? PICK(caller, numbers) : 19;
    case KIND_NUMBER:
        return bad ? PICK(caller, numbers) : draw(caller) % 3 ? draw(caller) % 3 : draw(caller) % 14;
    case KIND_MASK:
        return bad ? ~(word)0 : draw(caller) % 2 ? 8 : 0;
    case KIND_WAIT:
        return draw(caller) % 3;
    case KIND_TEXT_IN:
        return bad ? 0 : (word)text_in(caller);
    case KIND_LENGTH:
        return prepared->length;
    default:
        return prepared->capacity;
    }
}

static bool is_memory(enum kind kind)
{
    return kind == KIND_TEXT_OUT || kind == KIND_OUT || kind == KIND_VERSIONED || kind == KIND_IN || kind == KIND_LIST ||
           kind == KIND_WHOLE_LIST || kind == KIND_COUNT || kind >= KIND_DEVICE_OUT;
}

static void prepare(struct caller *caller, const struct row *row, bool hostile, struct prepared *prepared)
{
    memset(prepared, 0, sizeof *prepared);
    prepared->capacity = hostile ? draw(caller) % 3 : MOST_ITEMS;
    prepared->length = hostile ? draw(caller) % 100 : 96;
    for (size_t at = 0; at < MOST_ARGUMENTS && row->arguments[at].kind != KIND_END; at++) {
        const struct argument *argument = &row->arguments[at];
        bool bad = hostile && draw(caller) % 3 == 0;
        if (!is_memory(argument->kind)) {
            prepared->values[at] = by_value(caller, argument, prepared, bad);
            continue;
        }
        if (bad && (argument->kind != KIND_VERSIONED || draw(caller) % 4 == 0))
            continue; /* NULL */
        prepared->sizes[at] = memory_needed(argument, prepared);
        prepared->memory[at] = malloc(prepared->sizes[at]);
        if (!prepared->memory[at])
            fail(row->name, "could not be given memory");
        fill(caller, argument, prepared, at, bad);
        prepared->values[at] = (word)prepared->memory[at];
    }
}

static void learn(struct caller *caller, const struct row *row, enum kind kind, const void *memory)
{
    word value;
    memcpy(&value, memory, sizeof value);
    if (kind == KIND_DEVICE_OUT)
        *(strstr(row->name, "GetMigDevice") ? &caller->mig_device : &caller->device) = value;
    else if (kind == KIND_INSTANCE_OUT)
        caller->instance = value;
    else if (kind == KIND_COMPUTE_OUT)
        caller->compute = value;
    else if (kind == KIND_EVENTS_OUT)
        caller->events = value;
    else if (kind == KIND_SAMPLE_OUT)
        caller->sample = value;
}

static void inspect(struct caller *caller, const struct row *row, const struct prepared *prepared)
{
    for (size_t at = 0; at < MOST_ARGUMENTS && row->arguments[at].kind != KIND_END; at++) {
        const struct argument *argument = &row->arguments[at];
        if (!prepared->memory[at])
            continue;
        if (argument->kind == KIND_TEXT_OUT && !memchr(prepared->memory[at], 0, prepared->sizes[at]))
            fail(row->name, "answered success with a text without end");
        if (argument->kind == KIND_COUNT && memcmp(prepared->memory[at], &prepared->capacity, sizeof(unsigned int)) > 0 &&
            *(unsigned int *)prepared->memory[at] > 4096)
            fail(row->name, "answered success with a count beyond any list");
        if (argument->kind >= KIND_DEVICE_OUT)
            learn(caller, row, argument->kind, prepared->memory[at]);
    }
}

static bool is_known(word code)
{
    return (code & 0xFFFFFFFF) <= NVML_ERROR_RESET_TYPE_NOT_SUPPORTED || (code & 0xFFFFFFFF) == NVML_ERROR_UNKNOWN;
}

/* Watches the clock rather than an alarm signal: a signal would interrupt the calls it is to watch. */
static word timed(const char *name, any_function function, const word *v)
{
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    word code = function(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
    clock_gettime(CLOCK_MONOTONIC, &after);
    if (after.tv_sec - before.tv_sec > LONGEST_CALL_S)
        fail(name, "took too long");
    if (!is_known(code)) {
        fprintf(stderr, "%d: ", (int)code);
        fail(name, "answered a code that NVML does not know");
    }
    atomic_fetch_add(&calls_done, 1);
    atomic_fetch_add(&calls_succeeded, (unsigned int)code == NVML_SUCCESS);
    return code & 0xFFFFFFFF;
}

static void call(struct caller *caller, const struct row *row, bool hostile)
{
    any_function function = find(row->name);
    if (!function)
        return;
    struct prepared prepared;
    prepare(caller, row, hostile, &prepared);
    if (timed(row->name, function, prepared.values) == NVML_SUCCESS) {
        atomic_fetch_add(&successes[row - rows], 1);
        inspect(caller, row, &prepared);
    }
    for (size_t at = 0; at < MOST_ARGUMENTS; at++)
        free(prepared.memory[at]);
}

void caller_call(struct caller *caller, size_t row, bool hostile)
{
    call(caller, &rows[row], hostile);
}

unsigned long caller_successes(size_t row)
{
    return successes[row];
}

static void call_named(struct caller *caller, const char *name)
{
    for (size_t row = 0; row < row_count; row++) {
        if (strcmp(rows[row].name, name) == 0) {
            call(caller, &rows[row], false);
            return;
        }
    }
    fail(name, "has no row");
}

static void call_text(struct caller *caller, const char *name, char *text)
{
    any_function function = find(name);
    const word values[MOST_ARGUMENTS] = {caller->device, (word)text, sizeof caller->uuid};
    if (function && timed(name, function, values) != NVML_SUCCESS)
        strcpy(text, "none");
}

bool caller_call_stub(struct caller *caller, const char *name)
{
    any_function function = find(name);
    if (!function)
        return false;
    static _Thread_local unsigned char zeros[MOST_ARGUMENTS][4096];
    word values[MOST_ARGUMENTS];
    for (size_t at = 0; at < MOST_ARGUMENTS; at++)
        values[at] = draw(caller) % 4 ? (word)zeros[at] : 0;
    timed(name, function, values);
    return true;
}

struct caller *caller_begin(uint64_t seed)
{
    struct caller *caller = calloc(1, sizeof *caller);
    if (!caller)
        fail("caller_begin", "got no memory");
    caller->random = seed * 0x9E3779B97F4A7C15ULL + 1;
    call_named(caller, "nvmlInit_v2");
    for (int tries = 0; tries < 4 && !caller->device; tries++)
        call_named(caller, "nvmlDeviceGetHandleByIndex_v2");
    call_text(caller, "nvmlDeviceGetUUID", caller->uuid);
    call_text(caller, "nvmlDeviceGetSerial", caller->serial);
    call_named(caller, "nvmlDeviceCreateGpuInstance");
    call_named(caller, "nvmlGpuInstanceCreateComputeInstance");
    for (int tries = 0; tries < 4 && !caller->mig_device; tries++)
        call_named(caller, "nvmlDeviceGetMigDeviceHandleByIndex");
    call_named(caller, "nvmlEventSetCreate");
    call_named(caller, "nvmlDeviceRegisterEvents");
    call_named(caller, "nvmlGpmSampleAlloc");
    return caller;
}

void caller_end(struct caller *caller)
{
    call_named(caller, "nvmlComputeInstanceDestroy");
    call_named(caller, "nvmlGpuInstanceDestroy");
    call_named(caller, "nvmlEventSetFree");
    call_named(caller, "nvmlGpmSampleFree");
    any_function shutdown = find("nvmlShutdown");
    if (!shutdown)
        fail("nvmlShutdown", "is not exported: the library is missing");
    const word nothing[MOST_ARGUMENTS] = {0};
    int left = 100000;
    while (timed("nvmlShutdown", shutdown, nothing) != NVML_ERROR_UNINITIALIZED)
        if (!left--)
            fail("nvmlShutdown", "never ends");
    free(caller);
}
