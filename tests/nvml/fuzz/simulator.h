/*
 * A simulator in this process that answers what a real one answered once, and spoils the answers that a script names.
 * No rules of its own; what it answers well was recorded by record.py.
 */
#ifndef TESELA_FUZZ_SIMULATOR_H
#define TESELA_FUZZ_SIMULATOR_H

#include <stddef.h>
#include <stdint.h>

/* How one answer is spoiled. The numbers are in the corpus: never renumber. */
enum spoil {
    SPOIL_PAYLOAD,    /* replaced by the bytes that follow */
    SPOIL_FLIP,       /* one bit */
    SPOIL_CUT,        /* shorter, with the right length */
    SPOIL_LONGER,     /* more bytes at the end, with the right length */
    SPOIL_LENGTH,     /* the length word */
    SPOIL_ID,         /* the request id */
    SPOIL_CODE,       /* the return code */
    SPOIL_WORD,       /* a word somewhere in the payload: counts, lengths, ids */
    SPOIL_HALF,       /* a part of the frame, then the end of the connection */
    SPOIL_DRIP,       /* byte by byte */
    SPOIL_CLOSE,      /* no answer */
    SPOIL_TWICE,      /* the answer, and once more */
    SPOIL_RAW,        /* the bytes that follow instead of a frame, then the end of the connection */
    SPOIL_GONE,       /* no answer, and nothing accepts connections for the next few */
    SPOIL_OTHER,      /* the answer to another call */
    SPOIL_EMPTY,      /* success without a payload */
    SPOIL_STALE,      /* an answer to an older request first */
    SPOIL_NUMBERS,    /* success with some numbers and a text, as a named call has it */
    SPOIL_LIST,       /* its list made longer or shorter by repeating what is in it */
    SPOIL_TEXT,       /* the text at its end made longer or shorter */
    SPOIL_COUNT
};

/* A script's byte modulo this is a spoil; those without a meaning yet spoil nothing. */
#define SPOIL_ROOM 20

/* Starts it, sets TESELA_SIM_SOCKET, and returns; `answers` is the file of recorded answers. Ends the process if it cannot. */
void simulator_start(const char *answers);
/* What to spoil from now on: entries of request number u8, spoil u8, value u32, and for two spoils length u8 and bytes. */
void simulator_play(const uint8_t *script, size_t size);

#endif
