/*
 * One request and its answer as frames on a connected socket, with every wait bounded. What the bytes mean, and which
 * socket, is not known here.
 */
#ifndef TESELA_FRAMES_H
#define TESELA_FRAMES_H

#include "session.h"
#include "wire.h"

#define SILENCE_MS 5000 /* without a byte: ask whether the simulator still lives; also the timeouts of every socket */
#define FRAME_MS 10000  /* for sending a request, and for the rest of an answer that has begun */

struct answer {
    unsigned char *small; /* room the caller gives */
    size_t room;
    unsigned char *heap;  /* for an answer that is longer; the caller frees it */
    struct reader body;   /* what follows the length word */
};

int64_t clock_ms(void);
/* LINK_CLOSED: the peer has ended the connection and has not seen a byte of this. */
enum link frame_send(int fd, const unsigned char *frame, size_t size);
/* Waits for one frame. After each SILENCE_MS without a byte it asks `alive`; NULL: the first silence is the end. */
enum link frame_receive(int fd, struct answer *answer, enum link (*alive)(void));

#endif
