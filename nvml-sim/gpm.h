/* What session.c needs of the GPM samples: a fork must not split them. */
#ifndef TESELA_GPM_H
#define TESELA_GPM_H

void gpm_lock(void);
void gpm_unlock(void);

#endif
