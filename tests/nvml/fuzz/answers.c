/*
 * The library against spoiled answers, in one process. An input is: seed u8, first row u8, number of rows u8, hostile
 * arguments u8 (odd: yes), and a script for simulator.h. For libFuzzer, and with a main of its own for everyone else:
 *
 *     answers FILE...                plays every file
 *     answers -t SECONDS -s SEED -o FOLDER FILE...   changes the files at random for so long; what it plays now lies in FOLDER/now
 */
#include "caller.h"
#include "rows.h"
#include "simulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_INPUT 4096U

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    static bool started;
    if (!started) {
        const char *answers = getenv("TESELA_FUZZ_ANSWERS");
        simulator_start(answers ? answers : "answers.bin");
        started = true;
    }
    if (size < 4)
        return 0;
    simulator_play(input + 4, size - 4);
    struct caller *caller = caller_begin(input[0]);
    for (size_t i = 0; i < input[2] % 64U; i++)
        caller_call(caller, (input[1] + i) % row_count, input[3] & 1);
    simulator_play(NULL, 0);
    caller_end(caller);
    return 0;
}

#ifndef WITH_LIBFUZZER

static uint64_t random_state;

static unsigned int draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned int)(random_state >> 32);
}

static size_t read_input(const char *path, uint8_t *input)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    size_t size = fread(input, 1, MOST_INPUT, file);
    fclose(file);
    return size;
}

static size_t change(uint8_t *input, size_t size)
{
    static const uint32_t words[] = {0,       1,        2,         3,         4,          8,          12,        0xFF, 4096, 4097,
                                     0xFFFFF, 0x100000, 0x100001, 0x3FFFFFE, 0x3FFFFFF, 0x7FFFFFFF, 0xFFFFFFFF};
    for (unsigned int i = 0; i < 4; i++)
        if (size < 4 || draw() % 2)
            input[i] = (uint8_t)draw();
    size = size < 4 ? 4 : size;
    for (unsigned int edits = 1 + draw() % 4; edits && size + 6 + 16 < MOST_INPUT; edits--) {
        uint32_t value = draw() % 3 ? draw() : words[draw() % (sizeof words / sizeof *words)];
        if (draw() % 4 == 0 && size > 10)
            size = 4 + draw() % (size - 4); /* drop the tail */
        input[size] = (uint8_t)(draw() % 80);
        input[size + 1] = (uint8_t)(draw() % SPOIL_COUNT);
        memcpy(input + size + 2, &value, 4);
        bool bytes = input[size + 1] == SPOIL_PAYLOAD || input[size + 1] == SPOIL_RAW;
        size += 6;
        if (bytes) {
            unsigned int count = draw() % 15;
            input[size++] = (uint8_t)count;
            for (; count; count--)
                input[size++] = (uint8_t)(draw() % 4 ? draw() % 8 : draw());
        }
    }
    return size;
}

static void keep(const char *folder, const uint8_t *input, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/now", folder);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(input, 1, size, file) != size || fclose(file)) {
        perror(path);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    static uint8_t input[MOST_INPUT];
    unsigned long seconds = 0, played = 0;
    const char *folder = ".";
    for (int option; (option = getopt(argc, argv, "t:s:o:")) != -1;) {
        if (option == 't')
            seconds = strtoul(optarg, NULL, 10);
        else if (option == 's')
            random_state = strtoul(optarg, NULL, 10) * 0x9E3779B97F4A7C15ULL + 1;
        else if (option == 'o')
            folder = optarg;
        else
            return 2;
    }
    for (int i = optind; i < argc; i++, played++)
        LLVMFuzzerTestOneInput(input, read_input(argv[i], input));
    for (time_t end = time(NULL) + (time_t)seconds; time(NULL) < end; played++) {
        size_t size = optind < argc ? read_input(argv[optind + (int)(draw() % (unsigned int)(argc - optind))], input) : 0;
        size = change(input, size);
        keep(folder, input, size);
        LLVMFuzzerTestOneInput(input, size);
    }
    printf("%lu inputs, %lu calls, %lu succeeded\n", played, calls_done, calls_succeeded);
    return 0;
}

#endif
