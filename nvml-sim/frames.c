/*
 * Frames on a socket. The common case is one send and one recv; the clock, poll and the heap come in only where a peer
 * is slow, cuts its answer in pieces, or has much to say.
 */
#include "frames.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_UNSURE 12 /* silences */

int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* After a call that failed: a signal or a timeout, and not the end of the connection. */
static bool may_go_on(void)
{
    return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
}

enum link frame_send(int fd, const unsigned char *frame, size_t size)
{
    size_t sent = 0;
    int64_t until = clock_ms() + FRAME_MS;
    for (;;) {
        /* Blocks for SILENCE_MS at most, by SO_SNDTIMEO. */
        ssize_t count = send(fd, frame + sent, size - sent, MSG_NOSIGNAL);
        if (count < 0 && !may_go_on())
            return sent ? LINK_LOST : LINK_CLOSED;
        if (count > 0)
            sent += (size_t)count;
        if (sent == size)
            return LINK_OK;
        if (clock_ms() >= until)
            return LINK_LOST;
    }
}

/*
 * The first bytes of the answer, however long the simulator takes for them while it lives. Where this process cannot
 * tell, for want of a descriptor say, the answer is still waited for, but not for ever.
 */
static enum link receive_first(int fd, unsigned char *bytes, size_t room, enum link (*alive)(void), size_t *received)
{
    int64_t since = clock_ms();
    int unsure = 0;
    for (;;) {
        ssize_t count = recv(fd, bytes, room, 0);
        if (count > 0) {
            *received = (size_t)count;
            return LINK_OK;
        }
        if (!count || !may_go_on())
            return LINK_LOST;
        /* The clock decides, not the timeout: a client with many signals would never see that one. */
        if (clock_ms() - since < SILENCE_MS - 50)
            continue;
        enum link link = alive ? alive() : LINK_LOST;
        if (link == LINK_LOST || (link != LINK_OK && ++unsure == MAX_UNSURE))
            return link;
        since = clock_ms();
    }
}

static enum link receive_rest(int fd, unsigned char *bytes, size_t have, size_t need)
{
    int64_t until = clock_ms() + FRAME_MS;
    while (have < need) {
        ssize_t count = recv(fd, bytes + have, need - have, MSG_DONTWAIT);
        if (count > 0) {
            have += (size_t)count;
            continue;
        }
        if (!count || !may_go_on())
            return LINK_LOST;
        int64_t left = until - clock_ms();
        if (left <= 0)
            return LINK_LOST;
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        (void)poll(&readable, 1, (int)left);
    }
    return LINK_OK;
}

enum link frame_receive(int fd, struct answer *answer, enum link (*alive)(void))
{
    size_t have = 0;
    enum link link = receive_first(fd, answer->small, answer->room, alive, &have);
    if (link == LINK_OK && have < LENGTH_BYTES) {
        link = receive_rest(fd, answer->small, have, LENGTH_BYTES);
        have = LENGTH_BYTES;
    }
    if (link != LINK_OK)
        return link;
    size_t length = read_u32(answer->small);
    /* Only one request was asked: bytes beyond its answer belong to nothing. */
    if (length > MAX_FRAME_BYTES || length < ANSWER_HEADER_BYTES || have > LENGTH_BYTES + length)
        return LINK_BAD;
    unsigned char *bytes = answer->small;
    if (LENGTH_BYTES + length > answer->room) {
        bytes = answer->heap = malloc(LENGTH_BYTES + length);
        if (!bytes)
            return LINK_NO_MEMORY;
        memcpy(bytes, answer->small, have);
    }
    answer->body = (struct reader){bytes + LENGTH_BYTES, length, false};
    return receive_rest(fd, bytes, have, LENGTH_BYTES + length);
}
