/*
 * Opcode 0x0060: a call that goes by the name of its NVML function, with its target, numbers and a text, and is
 * answered with numbers and a text. The simulator knows what the numbers mean; the functions here only know their
 * shapes.
 */
#ifndef TESELA_NAMED_H
#define TESELA_NAMED_H

#include "call.h"

struct arguments {
    size_t count;
    int64_t numbers[8];
    const char *text; /* NULL: "" */
};

#define NOTHING ((struct arguments){0})
#define NUMBERS(n, ...) ((struct arguments){.count = (n), .numbers = {__VA_ARGS__}})
#define TEXT(t) ((struct arguments){.text = (t)})

/* `handle` NULL and `takes` 0: a call on the machine. */
nvmlReturn_t named_begin(struct call *call, const char *function, const void *handle, unsigned int takes);
/* Sends what named_begin began. The answer's numbers are `*count` times 8 bytes in call->in, its text follows. */
nvmlReturn_t named_send(struct call *call, struct arguments arguments, uint32_t *count);
/* Of an answer's numbers the next `count`, 32 bits each; fails if one is larger. */
void take_small(struct reader *in, uint32_t *out, size_t count);

/* Whole calls: exactly `count` numbers come back, else UNKNOWN. */
nvmlReturn_t named_nothing(const char *function, const void *handle, unsigned int takes, struct arguments arguments);
nvmlReturn_t named_u64(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                       uint64_t *out, uint32_t count);
nvmlReturn_t named_u32(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                       unsigned int *out, uint32_t count);
nvmlReturn_t named_i32(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                       int *out, uint32_t count);
/* INSUFFICIENT_SIZE: the text and its final zero do not fit the caller's buffer. */
nvmlReturn_t named_text(const char *function, const void *handle, unsigned int takes, struct arguments arguments,
                        char *buffer, unsigned int room);

/* Copies `text` into a buffer of `room` bytes, with a final zero. INSUFFICIENT_SIZE: that does not fit. */
nvmlReturn_t copy_text(struct text text, char *buffer, unsigned int room);

#endif
