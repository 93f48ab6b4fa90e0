/*
 * The texts of what keeps a client from its simulator, each with what to look at next.
 */
#include "trouble.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS 4 /* of 64 numbers each: more than there are */

static const char *const texts[TROUBLES] = {
    [TROUBLE_PATH] = "this path is longer than a socket's can be; set TESELA_SIM_SOCKET to a shorter one",
    [TROUBLE_SLOTS] = "every connection that this process may have is held up in a call",
    [TROUBLE_SOCKET] = "no socket to reach it with",
    [TROUBLE_CONNECT] = "nobody answers; does `tesela sim serve` run, and does TESELA_SIM_SOCKET name its socket",
    [TROUBLE_SILENCE] = "whoever listens there closed the connection or said nothing for 5 s",
    [TROUBLE_BAD] = "whoever listens there is no simulator",
    [TROUBLE_OTHER] = "the simulator speaks other versions of the protocol; build library and simulator from one release",
};
/* The socket has mode 0600. */
static const char not_ours[] = "run as the user who serves it, or as root";
static atomic_bool telling;
static _Atomic uint64_t told[TROUBLES][WORDS];

void trouble_prepare(void)
{
    const char *wish = getenv("TESELA_SIM_DEBUG");
    atomic_store(&telling, wish && *wish && strcmp(wish, "0"));
}

void trouble_tell(enum trouble trouble, const char *path, int number)
{
    uint64_t bit = UINT64_C(1) << (unsigned int)number % 64U;
    if (!atomic_load(&telling) || trouble == TROUBLE_NONE)
        return;
    if (atomic_fetch_or(&told[trouble][(unsigned int)number / 64U % WORDS], bit) & bit)
        return;
    const char *text = trouble == TROUBLE_CONNECT && number == EACCES ? not_ours : texts[trouble];
    errno = number;
    if (number)
        dprintf(STDERR_FILENO, "libnvidia-ml of Tesela: %s: %m: %s\n", path, text);
    else
        dprintf(STDERR_FILENO, "libnvidia-ml of Tesela: %s: %s\n", path, text);
}
