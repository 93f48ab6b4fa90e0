/* What session.c needs of the GPM samples: they end with the session, and a fork must not split them. */
#ifndef TESELA_GPM_H
#define TESELA_GPM_H

/* Frees every sample: handles to them are refused from now on. */
void gpm_forget(void);
void gpm_forget_locked(void);
void gpm_lock(void);
void gpm_unlock(void);

#endif
