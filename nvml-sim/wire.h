/*
 * Values of the simulator's protocol (docs/simulator-protocol.md), written to and read from memory with bounds. A
 * writer or reader that failed once stays failed, so that a message is checked once, at its end. No sockets in here.
 */
#ifndef TESELA_WIRE_H
#define TESELA_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_FRAME_BYTES (1U << 20) /* of everything after the length word */
#define MAX_LIST 4096U
#define LENGTH_BYTES 4U
#define REQUEST_HEADER_BYTES 8U /* opcode, reserved word, request id */
#define ANSWER_HEADER_BYTES 8U  /* request id, code */

struct writer {
    unsigned char *bytes;
    size_t size;
    size_t capacity;
    bool failed;
};

struct reader {
    const unsigned char *bytes;
    size_t left;
    bool failed;
};

/* A text inside a message; not ended by a zero. */
struct text {
    const char *bytes;
    size_t size;
};

void put_u16(struct writer *out, uint16_t value);
void put_u32(struct writer *out, uint32_t value);
void put_i32(struct writer *out, int32_t value);
void put_u64(struct writer *out, uint64_t value);
void put_bytes(struct writer *out, const void *bytes, size_t size);
void put_text(struct writer *out, const char *text);

/* Zero, or an empty text, once the reader has failed. */
uint16_t take_u16(struct reader *in);
uint32_t take_u32(struct reader *in);
uint64_t take_u64(struct reader *in);
/* A text with a zero inside fails: no C string could hold it. */
struct text take_text(struct reader *in);
/* A list's count; fails if it is more than MAX_LIST or if that many items of at least `item_bytes` cannot follow. */
uint32_t take_count(struct reader *in, size_t item_bytes);
/* Copies a text with its final zero; fails if `room` is too small. */
void take_text_into(struct reader *in, char *buffer, size_t room);
/* Whether nothing failed and nothing is left over. */
bool is_finished(const struct reader *in);

uint32_t read_u32(const unsigned char *bytes);
void write_u32(unsigned char *bytes, uint32_t value);

#endif
