/*
 * Why there is no simulator, in words: NVML has but one code for it. Said on stderr, where TESELA_SIM_DEBUG=1 stands in
 * the environment; a library is silent otherwise.
 */
#ifndef TESELA_TROUBLE_H
#define TESELA_TROUBLE_H

#include <stdbool.h>

enum trouble {
    TROUBLE_NONE,
    TROUBLE_PATH,    /* no socket can have that path */
    TROUBLE_SLOTS,   /* every connection is in use */
    TROUBLE_SOCKET,  /* no descriptor */
    TROUBLE_CONNECT,
    TROUBLE_SILENCE, /* connected, and no hello came back */
    TROUBLE_BAD,     /* no hello but something else */
    TROUBLE_OTHER,   /* other versions of the protocol */
    TROUBLES,
};

void trouble_prepare(void);
/* `number`: an errno, or 0. Each trouble and number is told once in the life of the process. */
void trouble_tell(enum trouble trouble, const char *path, int number);

#endif
