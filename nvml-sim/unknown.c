/*
 * NVML functions that nobody simulates. A driver has their symbols, so this library has them too; each tells the
 * simulator its name, which logs it once, and answers what that says: function not found. unknown.def lists them.
 */
#include "named.h"

static nvmlReturn_t unknown(const char *function)
{
    nvmlReturn_t code = named_nothing(function, NULL, 0, NOTHING);
    /* A simulator that knows the function and a library that cannot pass its results on: not a success. */
    return code == NVML_SUCCESS ? NVML_ERROR_FUNCTION_NOT_FOUND : code;
}

#define UNKNOWN(function)               \
    EXPORT nvmlReturn_t function(void); \
    nvmlReturn_t function(void)         \
    {                                   \
        return unknown(#function);      \
    }

#include "unknown.def"
