/* What session.c needs of the event sets: they end with the session, and a fork must not split them. */
#ifndef TESELA_EVENTS_H
#define TESELA_EVENTS_H

/* Frees every event set: handles to them are refused from now on. */
void events_forget(void);
void events_forget_locked(void);
void events_lock(void);
void events_unlock(void);

#endif
