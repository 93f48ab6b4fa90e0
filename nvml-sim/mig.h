/* What mig.c and compute.c share. */
#ifndef TESELA_MIG_H
#define TESELA_MIG_H

#include "wire.h"

/* A profile's name as drivers write it; the reader fails if it does not fit NVML's structs. */
void take_profile_name(struct reader *in, char name[96]);

#endif
