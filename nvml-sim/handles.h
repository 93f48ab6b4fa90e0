/*
 * Handles: what stands in nvmlDevice_t, nvmlGpuInstance_t, nvmlComputeInstance_t, nvmlEventSet_t, nvmlGpmSample_t. A
 * handle is a number that says what it names; it is checked and never followed, so that garbage is an invalid argument.
 */
#ifndef TESELA_HANDLES_H
#define TESELA_HANDLES_H

#include "abi.h"
#include "wire.h"

#define UUID_BYTES 96 /* NVML's longest, with its final zero */

enum kind {
    KIND_GPU = 1,
    KIND_MIG = 2,              /* a MIG device, in an nvmlDevice_t */
    KIND_GPU_INSTANCE = 3,
    KIND_COMPUTE_INSTANCE = 4,
    KIND_EVENT_SET = 5,
    KIND_GPM_SAMPLE = 6,
};

/* Which kinds a function takes. */
#define TAKES(kind) (1U << (kind))
#define TAKES_GPU TAKES(KIND_GPU)
#define TAKES_DEVICE (TAKES(KIND_GPU) | TAKES(KIND_MIG))

struct target {
    enum kind kind;
    unsigned int slot;     /* of the GPU; of the event set or sample */
    const char *gpu;       /* its UUID; NULL for an event set or sample */
    unsigned int gi;       /* NO_INSTANCE where the kind has none */
    unsigned int ci;
    unsigned int generation; /* of an event set or sample */
};

/* INVALID_ARGUMENT: no handle that this process was given, or of a kind that the function does not take. */
nvmlReturn_t target_of(const void *handle, unsigned int takes, struct target *out);

/* The GPU's slot; one UUID keeps its slot as long as the process lives. UNKNOWN: no UUID; MEMORY: too many. */
nvmlReturn_t slot_of_gpu(struct text uuid, unsigned int *slot);

nvmlDevice_t gpu_handle(unsigned int slot);
/* The rest is NULL for ids beyond what a handle holds; the simulator then spoke nonsense. */
nvmlDevice_t mig_handle(unsigned int slot, unsigned int gi, unsigned int ci);
nvmlGpuInstance_t gpu_instance_handle(unsigned int slot, unsigned int gi);
nvmlComputeInstance_t compute_instance_handle(unsigned int slot, unsigned int gi, unsigned int ci);
nvmlEventSet_t event_set_handle(unsigned int slot, unsigned int generation);
nvmlGpmSample_t gpm_sample_handle(unsigned int slot, unsigned int generation);

/* For fork alone (session.c). */
void handles_lock(void);
void handles_unlock(void);

#endif
