/*
 * The life of one call. A request is sent on an idle connection if there is one; it is sent again only where the
 * simulator cannot have seen a byte of it, because a request that was seen may have happened.
 */
#include "call.h"

#include "frames.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_uint next_request_id;

void call_begin_init(struct call *call, uint16_t opcode)
{
    call->connection = NULL;
    call->heap = NULL;
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
    case LINK_BAD:
        return NVML_ERROR_UNKNOWN;
    case LINK_OK:
    case LINK_LOST:
        break;
    }
    return call->lost;
}

static enum link send_request(struct call *call)
{
    bool idle_too = true;
    for (;;) {
        enum link link = connection_take(&call->connection, idle_too);
        if (link != LINK_OK)
            return link;
        if (call->interruptible && connection_interruptible(call->connection) != LINK_OK)
            return LINK_LOST;
        bool untouched, pooled = call->connection->pooled;
        link = frame_send(call->connection->fd, call->out.bytes, call->out.size, &untouched);
        if (link == LINK_OK || !untouched || !pooled)
            return link;
        /* The simulator closed this connection while it was idle, as one does that ends and comes back. */
        drop(call);
    }
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
    write_u32(call->request, (uint32_t)(call->out.size - LENGTH_BYTES));
    enum link link = send_request(call);
    struct answer answer = {.small = call->answer, .room = sizeof call->answer};
    if (link == LINK_OK)
        link = frame_receive(call->connection->fd, &answer, simulator_answers);
    call->heap = answer.heap;
    if (link != LINK_OK)
        return fail(call, link);
    call->in = answer.body;
    uint32_t id = take_u32(&call->in), code = take_u32(&call->in);
    if (id != read_u32(call->request + LENGTH_BYTES + 4))
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
    free(call->heap);
}
