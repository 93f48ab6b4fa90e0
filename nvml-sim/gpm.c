/*
 * GPM: samples of how busy a GPU or a GPU instance was. A sample is a few numbers of the simulator's, kept here until the
 * client gives it back; what they mean, and what lies between two of them, the simulator says.
 */
#include "gpm.h"

#include "named.h"

#include <pthread.h>
#include <string.h>

#define MAX_SAMPLES 1024U
#define SAMPLE_NUMBERS 3

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support);
EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample);
EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample);
EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample);
EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample);
EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request);

struct sample {
    bool used;
    bool filled;
    unsigned int generation;
    uint64_t numbers[SAMPLE_NUMBERS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sample samples[MAX_SAMPLES];

void gpm_lock(void)
{
    pthread_mutex_lock(&lock);
}

void gpm_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static struct sample *sample_locked(nvmlGpmSample_t handle)
{
    struct target target;
    if (target_of(handle, TAKES(KIND_GPM_SAMPLE), &target) != NVML_SUCCESS || target.slot >= MAX_SAMPLES)
        return NULL;
    struct sample *sample = &samples[target.slot];
    return sample->used && sample->generation == target.generation ? sample : NULL;
}

static bool is_sample(nvmlGpmSample_t handle)
{
    gpm_lock();
    bool known = sample_locked(handle) != NULL;
    gpm_unlock();
    return known;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(support);
    if (support->version != GPM_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return named_u32("nvmlGpmQueryDeviceSupport", device, TAKES_DEVICE, NOTHING, &support->isSupportedDevice, 1);
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    nvmlReturn_t code = NVML_ERROR_MEMORY;
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(sample);
    gpm_lock();
    for (unsigned int i = 0; i < MAX_SAMPLES && code != NVML_SUCCESS; i++) {
        if (samples[i].used)
            continue;
        samples[i].used = true;
        samples[i].filled = false;
        *sample = gpm_sample_handle(i, samples[i].generation);
        code = NVML_SUCCESS;
    }
    gpm_unlock();
    return code;
}

static void free_locked(struct sample *sample)
{
    sample->used = false;
    sample->generation++;
}

void gpm_forget_locked(void)
{
    for (unsigned int i = 0; i < MAX_SAMPLES; i++)
        if (samples[i].used)
            free_locked(&samples[i]);
}

void gpm_forget(void)
{
    gpm_lock();
    gpm_forget_locked();
    gpm_unlock();
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    gpm_lock();
    struct sample *found = sample_locked(sample);
    if (found)
        free_locked(found);
    gpm_unlock();
    return found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* INVALID_ARGUMENT: it was given back meanwhile. */
static nvmlReturn_t fill(nvmlGpmSample_t handle, const uint64_t *numbers)
{
    gpm_lock();
    struct sample *sample = sample_locked(handle);
    if (sample) {
        memcpy(sample->numbers, numbers, sizeof sample->numbers);
        sample->filled = true;
    }
    gpm_unlock();
    return sample ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t read_sample(const char *function, nvmlDevice_t device, unsigned int takes,
                                struct arguments arguments, nvmlGpmSample_t sample)
{
    uint64_t numbers[SAMPLE_NUMBERS];
    TRY(named_u64(function, device, takes, arguments, is_sample(sample) ? numbers : NULL, SAMPLE_NUMBERS));
    return fill(sample, numbers);
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    return read_sample("nvmlGpmSampleGet", device, TAKES_DEVICE, NOTHING, sample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample)
{
    return read_sample("nvmlGpmMigSampleGet", device, TAKES_GPU, NUMBERS(1, gi), sample);
}

/* INVALID_ARGUMENT: no sample, or one that nothing was read into. */
static nvmlReturn_t numbers_of(nvmlGpmSample_t handle, int64_t *out)
{
    gpm_lock();
    const struct sample *sample = sample_locked(handle);
    bool filled = sample && sample->filled;
    for (int i = 0; filled && i < SAMPLE_NUMBERS; i++)
        out[i] = (int64_t)sample->numbers[i];
    gpm_unlock();
    return filled ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t read_metric(nvmlGpmMetric_t *metric, const int64_t *first, const int64_t *second)
{
    uint64_t bits = 0;
    nvmlReturn_t code = named_u64("nvmlGpmMetricsGet", NULL, 0,
                                  NUMBERS(7, metric->metricId, first[0], first[1], first[2], second[0], second[1],
                                          second[2]),
                                  &bits, 1);
    memcpy(&metric->value, &bits, sizeof metric->value);
    metric->metricInfo = (nvmlGpmMetricMetricInfo_t){0};
    return code;
}

/* One question per metric; NOT_SUPPORTED is the metric's own code, every other one ends the call. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    if (!session_is_initialised())
        return NVML_ERROR_UNINITIALIZED;
    NEED(request);
    if (request->version != GPM_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    NEED(request->numMetrics <= GPM_METRIC_MAX);
    int64_t first[SAMPLE_NUMBERS], second[SAMPLE_NUMBERS];
    TRY(numbers_of(request->sample1, first));
    TRY(numbers_of(request->sample2, second));
    for (unsigned int i = 0; i < request->numMetrics; i++) {
        nvmlReturn_t code = read_metric(&request->metrics[i], first, second);
        if (code != NVML_SUCCESS && code != NVML_ERROR_NOT_SUPPORTED)
            return code;
        request->metrics[i].nvmlReturn = code;
    }
    return NVML_SUCCESS;
}
