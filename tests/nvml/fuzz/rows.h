/*
 * What every function of the library takes, as data, so that one loop can call them all with good and with bad
 * arguments. A function without a row is called with eight pointers to memory of zeros: the library's stubs look at none.
 */
#ifndef TESELA_FUZZ_ROWS_H
#define TESELA_FUZZ_ROWS_H

#include <stdbool.h>
#include <stddef.h>

enum kind {
    KIND_END,
    KIND_DEVICE, /* handles */
    KIND_MIG_DEVICE,
    KIND_INSTANCE,
    KIND_COMPUTE,
    KIND_EVENTS,
    KIND_SAMPLE,
    KIND_NUMBER,  /* an index, an enum, a profile, a mode */
    KIND_PROFILE, /* of a GPU instance, by id */
    KIND_MASK,    /* 64 bits */
    KIND_WAIT,    /* milliseconds; never long */
    KIND_TEXT_IN,
    KIND_TEXT_OUT, /* a buffer whose length follows as KIND_LENGTH */
    KIND_LENGTH,
    KIND_OUT,       /* a word or a struct of `size` bytes */
    KIND_VERSIONED, /* a struct whose first word says `size` and `version`; with BARE_VERSION that alone */
    KIND_IN,        /* a struct that is only read */
    KIND_LIST,      /* of items of `size` bytes, as many as KIND_COUNT or KIND_CAPACITY says */
    KIND_WHOLE_LIST, /* of items of `size` bytes, as many as NVML has at most: it is not told how many fit */
    KIND_COUNT,     /* the capacity before the call, the number after it */
    KIND_CAPACITY,  /* the same, by value */
    KIND_DEVICE_OUT, /* handles that later calls use */
    KIND_INSTANCE_OUT,
    KIND_COMPUTE_OUT,
    KIND_EVENTS_OUT,
    KIND_SAMPLE_OUT,
};

#define BARE_VERSION 0x80000000U

struct argument {
    enum kind kind;
    size_t size;
    unsigned int version;
};

#define MOST_ARGUMENTS 8

struct row {
    const char *name;
    struct argument arguments[MOST_ARGUMENTS];
};

extern const struct row rows[];
extern const size_t row_count;

#endif
