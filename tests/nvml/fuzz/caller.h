/* Calls the library's functions with good and bad arguments; an answer that NVML does not know ends the process. */
#ifndef TESELA_FUZZ_CALLER_H
#define TESELA_FUZZ_CALLER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct caller; /* the handles of one run */

/* Initialises NVML and gets a handle of every kind, as far as the simulator lets it. Reproducible by `seed`. */
struct caller *caller_begin(uint64_t seed);
/* Calls a row; `hostile`: some of its arguments are bad. */
void caller_call(struct caller *caller, size_t row, bool hostile);
/* Calls an exported function that has no row. False: the library does not export it. */
bool caller_call_stub(struct caller *caller, const char *name);
/* Destroys what the run made and shuts NVML down. */
void caller_end(struct caller *caller);
/* How many calls answered 0, and how many calls there were, since the process began. */
extern atomic_ulong calls_done, calls_succeeded;
/* How often a row answered 0. */
unsigned long caller_successes(size_t row);

#endif
