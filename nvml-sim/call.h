/*
 * One call to the simulator, from its first check to the end of its answer:
 *
 *     CALL(call);
 *     TRY(call_gpu(&call, OPCODE, device));      initialised? whose handle? the request begins
 *     put_u32(&call.out, ...);                   arguments
 *     TRY(call_send(&call));                     the simulator's code
 *     value = take_u32(&call.in);                the result
 *     TRY(call_accept(&call));                   it was exactly that, and the connection is free again
 *
 * Leaving in between closes the connection: what it would say next belongs to nobody. No NVML function in here.
 */
#ifndef TESELA_CALL_H
#define TESELA_CALL_H

#include "handles.h"
#include "session.h"
#include "wire.h"

/* On the stack of the caller's thread, which may be a small one; what is longer goes to the heap. */
#define REQUEST_BYTES 1024
#define ANSWER_BYTES 2048

struct call {
    struct writer out;
    struct reader in;
    struct target target;
    struct connection *connection;
    unsigned char *heap; /* a long answer */
    unsigned char *long_request;
    nvmlReturn_t lost; /* what this call answers if the simulator is gone */
    bool interruptible; /* the last nvmlShutdown may end it */
    bool answered;      /* a code that is no success is the simulator's own word */
    unsigned char request[REQUEST_BYTES];
    unsigned char answer[ANSWER_BYTES];
};

#define CALL(name) struct call name __attribute__((cleanup(call_leave)))
#define TRY(expression)                        \
    do {                                       \
        nvmlReturn_t code_ = (expression);     \
        if (code_ != NVML_SUCCESS)             \
            return code_;                      \
    } while (0)
#define NEED(condition)                        \
    do {                                       \
        if (!(condition))                      \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

/* A versioned struct: initialised, given, and its version word known. */
#define CHECK_VERSION(pointer, type, number)                          \
    do {                                                              \
        if (!session_is_initialised())                                \
            return NVML_ERROR_UNINITIALIZED;                          \
        NEED(pointer);                                                \
        if ((pointer)->version != STRUCT_VERSION(type, number))       \
            return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;              \
    } while (0)

/* The first call on a CALL; only nvmlInit may come before NVML is initialised. */
nvmlReturn_t call_begin(struct call *call, uint16_t opcode);
void call_begin_init(struct call *call, uint16_t opcode);
/* A typed call on a GPU, or on a GPU instance or compute instance: the UUID and the ids are its first arguments. */
nvmlReturn_t call_gpu(struct call *call, uint16_t opcode, const void *handle);
nvmlReturn_t call_gpu_instance(struct call *call, uint16_t opcode, const void *handle);
nvmlReturn_t call_compute_instance(struct call *call, uint16_t opcode, const void *handle);

/* Before a list of arguments: room for so many bytes more than a request has on the stack. MEMORY: there is none. */
nvmlReturn_t call_reserve(struct call *call, size_t size);
nvmlReturn_t call_send(struct call *call);
nvmlReturn_t call_accept(struct call *call);
void call_leave(struct call *call);

#endif
