/*
 * What this process has with the simulator: how often NVML is initialised, where the simulator is, and the pool of
 * connections. A connection carries one request at a time. No NVML function and no format of a call in here.
 */
#ifndef TESELA_SESSION_H
#define TESELA_SESSION_H

#include "abi.h"

#include <stdbool.h>

/* How an attempt to speak with the simulator ended. */
enum link {
    LINK_OK,
    LINK_LOST,       /* nothing there, or it went away */
    LINK_CLOSED,     /* it ended this connection before it saw the request */
    LINK_BAD,        /* it spoke, but not this protocol */
    LINK_OTHER,      /* it speaks other versions of the protocol */
    LINK_FULL,       /* no connection became free in time, here or there */
    LINK_NO_SOCKET,  /* the system gives this process none */
    LINK_NO_MEMORY,
};

struct connection {
    enum { SLOT_FREE, SLOT_IDLE, SLOT_USED } state;
    int fd;
    bool interruptible; /* the last nvmlShutdown ends what it waits for */
    unsigned int epoch;
};

bool session_is_initialised(void);
/* Changes with each last nvmlShutdown, and in a forked child: what an older epoch opened is not ours any more. */
unsigned int session_epoch(void);
/* Reads where the simulator is, if nobody has initialised NVML yet. */
void session_prepare(void);
void session_count_up(void);
/* UNINITIALIZED if there is nothing to count down. The last one closes every idle connection and wakes event waits. */
nvmlReturn_t session_count_down(void);

/* An idle connection if `idle_too`, else a new one, past its hello. Waits where every connection is in use. */
enum link connection_take(struct connection **out, bool idle_too);
/* Keeps it for the next call, or closes it. */
void connection_give_back(struct connection *connection);
void connection_close(struct connection *connection);
/* Whether the last nvmlShutdown may end the call that has it; LINK_LOST if that has happened already. */
enum link connection_interruptible(struct connection *connection);
/*
 * Whether a simulator answers a hello within SILENCE_MS: a call that takes long may be held up on purpose. LINK_LOST if
 * not; LINK_FULL, LINK_NO_SOCKET or LINK_NO_MEMORY where this process could not find out.
 */
enum link simulator_answers(void);

#endif
