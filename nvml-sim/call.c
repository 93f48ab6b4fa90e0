/*
 * The life of one call. A request is sent on an idle connection if there is one; it is sent again only where the
 * simulator cannot have seen a byte of it, because a request that was seen may have happened.
 */
#include "call.h"

#include "frames.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SEND_TRIES 16
#define NEW_TRIES 4 /* the last ones, on connections that were not idle */

static atomic_uint next_request_id;

void call_begin_init(struct call *call, uint16_t opcode)
{
    call->connection = NULL;
    call->heap = call->long_request = NULL;
    call->interruptible = call->answered = false;
    call->lost = NVML_ERROR_DRIVER_NOT_LOADED;
    call->in = (struct reader){call->answer, 0, true};
    call->out = (struct writer){call->request, 0, sizeof call->request, false};
    put_u32(&call->out, 0);
    put_u16(&call->out, opcode);
    put_u16(&call->out, 0);
    put_u32(&call->out, atomic_fetch_add_explicit(&next_request_id, 1, memory_order_relaxed));
}

nvmlReturn_t call_begin(struct call *call, uint16_t opcode)
{
    call_begin_init(call, opcode);
    return session_is_initialised() ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t call_target(struct call *call, uint16_t opcode, const void *handle, enum kind kind)
{
    TRY(call_begin(call, opcode));
    TRY(target_of(handle, TAKES(kind), &call->target));
    call->lost = NVML_ERROR_GPU_IS_LOST;
    put_text(&call->out, call->target.gpu);
    if (kind != KIND_GPU)
        put_u32(&call->out, call->target.gi);
    if (kind == KIND_COMPUTE_INSTANCE)
        put_u32(&call->out, call->target.ci);
    return NVML_SUCCESS;
}

nvmlReturn_t call_gpu(struct call *call, uint16_t opcode, const void *handle)
{
    return call_target(call, opcode, handle, KIND_GPU);
}

nvmlReturn_t call_gpu_instance(struct call *call, uint16_t opcode, const void *handle)
{
    return call_target(call, opcode, handle, KIND_GPU_INSTANCE);
}

nvmlReturn_t call_compute_instance(struct call *call, uint16_t opcode, const void *handle)
{
    return call_target(call, opcode, handle, KIND_COMPUTE_INSTANCE);
}

nvmlReturn_t call_reserve(struct call *call, size_t size)
{
    call->long_request = malloc(REQUEST_BYTES + size);
    if (!call->long_request)
        return NVML_ERROR_MEMORY;
    memcpy(call->long_request, call->out.bytes, call->out.size);
    call->out.bytes = call->long_request;
    call->out.capacity = REQUEST_BYTES + size;
    return NVML_SUCCESS;
}

static void drop(struct call *call)
{
    if (call->connection)
        connection_close(call->connection);
    call->connection = NULL;
}

static nvmlReturn_t fail(struct call *call, enum link link)
{
    drop(call);
    switch (link) {
    case LINK_OTHER:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    case LINK_NO_MEMORY:
        return NVML_ERROR_MEMORY;
    case LINK_FULL:
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case LINK_NO_SOCKET:
        return NVML_ERROR_OPERATING_SYSTEM;
    case LINK_BAD:
        return NVML_ERROR_UNKNOWN;
    case LINK_OK:
    case LINK_LOST:
    case LINK_CLOSED:
        break;
    }
    return call->lost;
}

/* The simulator closes idle connections where it needs room, and all of them where it ends and comes back. */
static enum link send_request(struct call *call)
{
    for (int tries = SEND_TRIES; tries; tries--) {
        enum link link = connection_take(&call->connection, tries > NEW_TRIES);
        if (link != LINK_OK)
            return link;
        if (call->interruptible && connection_interruptible(call->connection) != LINK_OK)
            return LINK_LOST;
        link = frame_send(call->connection->fd, call->out.bytes, call->out.size);
        if (link != LINK_CLOSED)
            return link;
        drop(call);
    }
    return LINK_LOST;
}

/* The code in an answer that is no success; its text is for people who read the socket. */
static nvmlReturn_t refusal(struct call *call, uint32_t code)
{
    (void)take_text(&call->in);
    TRY(call_accept(call));
    call->answered = true;
    bool known = code <= NVML_ERROR_RESET_TYPE_NOT_SUPPORTED || code == NVML_ERROR_UNKNOWN;
    return known ? (nvmlReturn_t)code : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t call_send(struct call *call)
{
    if (call->out.failed)
        return NVML_ERROR_INVALID_ARGUMENT;
    write_u32(call->out.bytes, (uint32_t)(call->out.size - LENGTH_BYTES));
    enum link link = send_request(call);
    struct answer answer = {.small = call->answer, .room = sizeof call->answer};
    if (link == LINK_OK)
        link = frame_receive(call->connection->fd, &answer, simulator_answers);
    call->heap = answer.heap;
    if (link != LINK_OK)
        return fail(call, link);
    call->in = answer.body;
    uint32_t id = take_u32(&call->in), code = take_u32(&call->in);
    if (id != read_u32(call->out.bytes + LENGTH_BYTES + 4))
        return fail(call, LINK_BAD);
    return code ? refusal(call, code) : NVML_SUCCESS;
}

nvmlReturn_t call_accept(struct call *call)
{
    if (!is_finished(&call->in))
        return fail(call, LINK_BAD);
    connection_give_back(call->connection);
    call->connection = NULL;
    return NVML_SUCCESS;
}

void call_leave(struct call *call)
{
    drop(call);
    free(call->long_request);
    free(call->heap);
}
