/*
 * Calls every function of the library against whatever answers at TESELA_SIM_SOCKET, and then ROUNDS times again, every other time badly.
 * The names on standard input are the exported ones; those without a row are called as stubs. Ends with 0 and the
 * number of calls unless an answer was none of NVML's.
 *
 *     nm -D --defined-only libnvidia-ml.so.1 | awk '{print $3}' | every_call ROUNDS SEED
 */
#include "caller.h"
#include "rows.h"

#include "abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_row(const char *name)
{
    for (size_t row = 0; row < row_count; row++)
        if (strcmp(rows[row].name, name) == 0)
            return true;
    return false;
}

extern const char *nvmlErrorString(nvmlReturn_t);

static void ask_for_texts(void)
{
    for (int code = -2; code < 1100; code++) {
        const char *text = nvmlErrorString((nvmlReturn_t)code);
        if (!text || !*text || strlen(text) > 200)
            abort();
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: every_call ROUNDS SEED < names\n", stderr);
        return 2;
    }
    unsigned long rounds = strtoul(argv[1], NULL, 10), seed = strtoul(argv[2], NULL, 10);
    char line[256];
    ask_for_texts();
    struct caller *caller = caller_begin(seed);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "nvml", 4) == 0 && strcmp(line, "nvmlErrorString") != 0 && !has_row(line))
            caller_call_stub(caller, line);
    }
    for (size_t row = 0; row < row_count; row++)
        caller_call(caller, row, false);
    caller_end(caller);
    for (unsigned long round = 1; round <= rounds; round++) {
        caller = caller_begin(seed + round);
        for (size_t row = 0; row < row_count; row++)
            caller_call(caller, row, round % 2);
        caller_end(caller);
    }
    for (size_t row = 0; row < row_count; row++)
        if (!caller_successes(row))
            printf("never succeeded: %s\n", rows[row].name);
    printf("%lu calls, %lu succeeded\n", calls_done, calls_succeeded);
    return 0;
}
