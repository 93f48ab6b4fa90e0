/*
 * Everything at once, for ThreadSanitizer: threads that call every function while others initialise and shut down,
 * wait for events and fork. Ends with 0 unless an answer was none of NVML's; the sanitizer reports the rest.
 *
 *     threads THREADS ROUNDS SEED
 */
#include "caller.h"
#include "rows.h"

#include "abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern nvmlReturn_t nvmlInit_v2(void);
extern nvmlReturn_t nvmlShutdown(void);
extern nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t *);
extern nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *);
extern nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t);
extern nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long, nvmlEventSet_t);
extern nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t *, unsigned int);

/* A child of a process with threads cannot count on AddressSanitizer's heap: one of them may have held its lock. */
#ifdef __SANITIZE_ADDRESS__
#define FORKING come_and_go
#else
#define FORKING fork_now_and_then
#endif

static unsigned long rounds, seed;
static atomic_bool done;

static void *call_everything(void *number)
{
    for (unsigned long round = 0; round < rounds; round++) {
        struct caller *caller = caller_begin(seed + (uintptr_t)number * 1000 + round);
        for (size_t row = 0; row < row_count; row++)
            caller_call(caller, row, round % 2);
        caller_end(caller);
    }
    return NULL;
}

static void *come_and_go(void *nothing)
{
    while (!atomic_load(&done)) {
        nvmlInit_v2();
        nvmlDevice_t device;
        nvmlDeviceGetHandleByIndex_v2(0, &device);
        nvmlShutdown();
        usleep(500);
    }
    return nothing;
}

static void *wait_for_events(void *nothing)
{
    while (!atomic_load(&done)) {
        nvmlEventSet_t set;
        nvmlDevice_t device;
        nvmlEventData_t data;
        nvmlInit_v2();
        if (nvmlEventSetCreate(&set) == NVML_SUCCESS) {
            if (nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS)
                nvmlDeviceRegisterEvents(device, 8, set);
            nvmlEventSetWait_v2(set, &data, 30);
            nvmlEventSetFree(set);
        }
        nvmlShutdown();
    }
    return nothing;
}

#ifndef __SANITIZE_ADDRESS__
/* The child uses NVML anew and leaves without cleaning up, as one that calls exec does. */
static void *fork_now_and_then(void *nothing)
{
    while (!atomic_load(&done)) {
        pid_t child = fork();
        if (child == 0) {
            nvmlDevice_t device;
            nvmlInit_v2();
            nvmlDeviceGetHandleByIndex_v2(0, &device);
            _exit(0);
        }
        int status = 0;
        if (child > 0 && (waitpid(child, &status, 0) != child || status)) {
            fprintf(stderr, "a child ended with status %#x\n", (unsigned int)status);
            exit(1);
        }
        usleep(5000);
    }
    return nothing;
}
#endif

int main(int argc, char **argv)
{
    enum { MOST = 64 };
    void *(*const others[])(void *) = {come_and_go, wait_for_events, wait_for_events, FORKING};
    enum { OTHERS = sizeof others / sizeof *others };
    pthread_t callers[MOST], other[OTHERS];
    unsigned long count = argc == 4 ? strtoul(argv[1], NULL, 10) : 0;
    rounds = argc == 4 ? strtoul(argv[2], NULL, 10) : 0;
    seed = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (!count || count > MOST) {
        fputs("usage: threads THREADS ROUNDS SEED\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < OTHERS; i++)
        pthread_create(&other[i], NULL, others[i], NULL);
    for (unsigned long i = 0; i < count; i++)
        pthread_create(&callers[i], NULL, call_everything, (void *)i);
    for (unsigned long i = 0; i < count; i++)
        pthread_join(callers[i], NULL);
    atomic_store(&done, true);
    for (size_t i = 0; i < OTHERS; i++)
        pthread_join(other[i], NULL);
    printf("%lu calls, %lu succeeded\n", calls_done, calls_succeeded);
    return 0;
}
