/*
 * Bounded readers and writers of the protocol's values. Everything is little-endian, byte by byte, so that neither the
 * machine's order nor alignment matters.
 */
#include "wire.h"

#include <string.h>

static void put_little_endian(struct writer *out, uint64_t value, size_t size)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    put_bytes(out, bytes, size);
}

void put_bytes(struct writer *out, const void *bytes, size_t size)
{
    if (out->failed || size > out->capacity - out->size) {
        out->failed = true;
        return;
    }
    if (size)
        memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
}

void put_u16(struct writer *out, uint16_t value)
{
    put_little_endian(out, value, 2);
}

void put_u32(struct writer *out, uint32_t value)
{
    put_little_endian(out, value, 4);
}

void put_i32(struct writer *out, int32_t value)
{
    put_little_endian(out, (uint32_t)value, 4);
}

void put_u64(struct writer *out, uint64_t value)
{
    put_little_endian(out, value, 8);
}

void put_text(struct writer *out, const char *text)
{
    size_t size = strnlen(text, out->capacity);
    put_u32(out, (uint32_t)size);
    put_bytes(out, text, size);
}

static const unsigned char *take_bytes(struct reader *in, size_t size)
{
    if (in->failed || size > in->left) {
        in->failed = true;
        return NULL;
    }
    const unsigned char *bytes = in->bytes;
    in->bytes += size;
    in->left -= size;
    return bytes;
}

static uint64_t take_little_endian(struct reader *in, size_t size)
{
    const unsigned char *bytes = take_bytes(in, size);
    uint64_t value = 0;
    for (size_t i = 0; bytes && i < size; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

uint16_t take_u16(struct reader *in)
{
    return (uint16_t)take_little_endian(in, 2);
}

uint32_t take_u32(struct reader *in)
{
    return (uint32_t)take_little_endian(in, 4);
}

uint64_t take_u64(struct reader *in)
{
    return take_little_endian(in, 8);
}

struct text take_text(struct reader *in)
{
    size_t size = take_u32(in);
    const unsigned char *bytes = take_bytes(in, size);
    if (!bytes || memchr(bytes, 0, size)) {
        in->failed = true;
        return (struct text){"", 0};
    }
    return (struct text){(const char *)bytes, size};
}

uint32_t take_count(struct reader *in, size_t item_bytes)
{
    uint32_t count = take_u32(in);
    if (in->failed || count > MAX_LIST || count > in->left / item_bytes) {
        in->failed = true;
        return 0;
    }
    return count;
}

void take_text_into(struct reader *in, char *buffer, size_t room)
{
    struct text text = take_text(in);
    if (text.size >= room) {
        in->failed = true;
        return;
    }
    memcpy(buffer, text.bytes, text.size);
    buffer[text.size] = 0;
}

bool is_finished(const struct reader *in)
{
    return !in->failed && !in->left;
}

uint32_t read_u32(const unsigned char *bytes)
{
    struct reader in = {bytes, 4, false};
    return take_u32(&in);
}

void write_u32(unsigned char *bytes, uint32_t value)
{
    struct writer out = {bytes, 0, 4, false};
    put_u32(&out, value);
}
