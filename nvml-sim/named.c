/*
 * Calls by name, in the few shapes that NVML functions have. A number that does not fit what the function returns, or
 * a wrong count of them, is bad traffic like any other.
 */
#include "named.h"

#include <string.h>

#define OPCODE_NAMED 0x0060

nvmlReturn_t named_begin(struct call *call, const char *function, const void *handle, unsigned int takes)
{
    TRY(call_begin(call, OPCODE_NAMED));
    call->target = (struct target){.gpu = "", .gi = NO_INSTANCE, .ci = NO_INSTANCE};
    if (takes) {
        TRY(target_of(handle, takes, &call->target));
        call->lost = NVML_ERROR_GPU_IS_LOST;
    }
    put_text(&call->out, function);
    put_text(&call->out, call->target.gpu);
    put_u32(&call->out, call->target.gi);
    put_u32(&call->out, call->target.ci);
    return NVML_SUCCESS;
}

nvmlReturn_t named_send(struct call *call, struct arguments arguments, uint32_t *count)
{
    put_u32(&call->out, (uint32_t)arguments.count);
    for (size_t i = 0; i < arguments.count; i++)
        put_u64(&call->out, (uint64_t)arguments.numbers[i]);
    put_text(&call->out, arguments.text ? arguments.text : "");
    TRY(call_send(call));
    *count = take_count(&call->in, sizeof(uint64_t));
    return NVML_SUCCESS;
}

void take_small(struct reader *in, uint32_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t number = take_u64(in);
        out[i] = (uint32_t)number;
        in->failed |= number > UINT32_MAX;
    }
}

nvmlReturn_t named_u64(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                       uint64_t *out, uint32_t count)
{
    CALL(call);
    uint32_t got;
    TRY(named_begin(&call, function, handle, takes));
    NEED(out || !count);
    TRY(named_send(&call, arguments, &got));
    if (got != count)
        call.in.failed = true;
    struct reader numbers = call.in;
    for (uint32_t i = 0; i < count; i++)
        (void)take_u64(&call.in);
    (void)take_text(&call.in);
    TRY(call_accept(&call));
    for (uint32_t i = 0; i < count; i++)
        out[i] = take_u64(&numbers);
    return NVML_SUCCESS;
}

nvmlReturn_t named_nothing(const char *function, const void *handle, unsigned int takes, struct arguments arguments)
{
    return named_u64(function, handle, takes, arguments, NULL, 0);
}

#define MOST_SMALL_NUMBERS 16

nvmlReturn_t named_u32(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                       unsigned int *out, uint32_t count)
{
    uint64_t numbers[MOST_SMALL_NUMBERS];
    TRY(named_u64(function, handle, takes, arguments, out ? numbers : NULL, count));
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] > UINT32_MAX)
            return NVML_ERROR_UNKNOWN;
    for (uint32_t i = 0; i < count; i++)
        out[i] = (unsigned int)numbers[i];
    return NVML_SUCCESS;
}

nvmlReturn_t named_i32(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                       int *out, uint32_t count)
{
    uint64_t numbers[MOST_SMALL_NUMBERS];
    TRY(named_u64(function, handle, takes, arguments, out ? numbers : NULL, count));
    for (uint32_t i = 0; i < count; i++)
        if ((int64_t)numbers[i] < INT32_MIN || (int64_t)numbers[i] > INT32_MAX)
            return NVML_ERROR_UNKNOWN;
    for (uint32_t i = 0; i < count; i++)
        out[i] = (int)(int64_t)numbers[i];
    return NVML_SUCCESS;
}

nvmlReturn_t copy_text(struct text text, char *buffer, unsigned int room)
{
    if (text.size >= room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text.bytes, text.size);
    buffer[text.size] = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t named_text(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                        char *buffer, unsigned int room)
{
    CALL(call);
    uint32_t got;
    TRY(named_begin(&call, function, handle, takes));
    NEED(buffer);
    TRY(named_send(&call, arguments, &got));
    for (uint32_t i = 0; i < got; i++)
        (void)take_u64(&call.in);
    struct text text = take_text(&call.in);
    TRY(call_accept(&call));
    return copy_text(text, buffer, room);
}
