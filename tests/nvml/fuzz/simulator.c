#include "simulator.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_CONNECTIONS 64
#define MOST_ANSWERS 1024
#define MOST_BYTES 70000U /* of a spoiled payload; the length word may claim more */
#define HEAD 12U          /* length, request id, code */
#define HELLO 0x0000U
#define NAMED_CALL 0x0060U
#define CREATE_COMPUTE 0x003AU
#define LIST_COMPUTE 0x003BU

struct recorded {
    uint16_t opcode;
    uint16_t name_size;
    const uint8_t *name; /* of a named call */
    uint32_t code;
    uint32_t size;
    const uint8_t *payload;
};

struct edit {
    enum spoil spoil;
    uint32_t value;
    const uint8_t *bytes;
    size_t size;
};

static struct recorded answers[MOST_ANSWERS];
static size_t answer_count;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const uint8_t *script;
static size_t script_size;
static unsigned int requests, refusals;

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static uint32_t u32(const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static uint16_t u16(const uint8_t *bytes)
{
    uint16_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static void load(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        die(path);
    size_t size = (size_t)ftell(file), at = 0;
    rewind(file);
    static uint8_t *bytes;
    bytes = malloc(size);
    if (!bytes || fread(bytes, 1, size, file) != size)
        die(path);
    fclose(file);
    while (at < size && answer_count < MOST_ANSWERS) {
        struct recorded *answer = &answers[answer_count++];
        answer->opcode = u16(bytes + at);
        answer->name_size = u16(bytes + at + 2);
        answer->name = bytes + at + 4;
        at += 4U + answer->name_size;
        answer->code = u32(bytes + at);
        answer->size = u32(bytes + at + 4);
        answer->payload = bytes + at + 8;
        at += 8U + answer->size;
    }
}

/* The recorded answer to this request; to an unknown one, function not found in the form of an error. */
static const struct recorded *find(const uint8_t *request, size_t size)
{
    static const uint8_t sorry[] = {5, 0, 0, 0, 's', 'o', 'r', 'r', 'y'};
    static const struct recorded unknown = {0, 0, NULL, 13, sizeof sorry, sorry};
    uint16_t opcode = u16(request);
    const uint8_t *name = request + 12;
    size_t name_size = opcode == NAMED_CALL && size >= 12 ? u32(request + 8) : 0;
    if (name_size > size - 8)
        return &unknown;
    for (size_t i = 0; i < answer_count; i++)
        if (answers[i].opcode == opcode && answers[i].name_size == name_size &&
            (!name_size || memcmp(answers[i].name, name, name_size) == 0))
            return &answers[i];
    return &unknown;
}

/* The script's entry for the request of this number. */
static bool find_edit(unsigned int number, struct edit *edit)
{
    for (size_t at = 0; at + 6 <= script_size;) {
        unsigned int wanted = script[at];
        *edit = (struct edit){(enum spoil)(script[at + 1] % SPOIL_ROOM), u32(script + at + 2), NULL, 0};
        at += 6;
        if ((edit->spoil == SPOIL_PAYLOAD || edit->spoil == SPOIL_RAW) && at < script_size) {
            edit->size = script[at++];
            if (edit->size > script_size - at)
                edit->size = script_size - at;
            edit->bytes = script + at;
            at += edit->size;
        }
        if (wanted == (number & 0xFF))
            return true;
    }
    return false;
}

static bool deliver(int fd, const uint8_t *bytes, size_t size, bool drip)
{
    for (size_t sent = 0; sent < size;) {
        ssize_t count = send(fd, bytes + sent, drip ? 1 : size - sent, MSG_NOSIGNAL);
        if (count <= 0)
            return false;
        sent += (size_t)count;
        if (drip && sent > 64) /* the rest at once: what matters is the head */
            drip = false;
        if (drip)
            usleep(100);
    }
    return true;
}

/* A recorded compute instance is made one of the GPU instance that is asked about: the library looks. */
static void fit(uint8_t *payload, size_t size, const uint8_t *request, size_t request_size)
{
    uint16_t opcode = u16(request);
    size_t gi_at = request_size >= 12 ? 12 + (size_t)u32(request + 8) : request_size;
    uint32_t count = opcode == LIST_COMPUTE && size >= 4 ? u32(payload) : 1;
    size_t first = opcode == LIST_COMPUTE ? 4 : 0;
    if ((opcode != LIST_COMPUTE && opcode != CREATE_COMPUTE) || gi_at + 4 > request_size || !count || size < first)
        return;
    size_t item = (size - first) / count;
    for (uint32_t i = 0; item >= 8 && i < count; i++)
        memcpy(payload + first + i * item + 4, request + gi_at, 4);
}

/* The payload with `count` items, those of its list one after the other; returns its new size. */
static size_t stretch(uint8_t *payload, size_t size, bool named, uint32_t count)
{
    static uint8_t items[MOST_BYTES];
    uint32_t had = size >= 4 ? u32(payload) : 0;
    if (!had || had > (size - 4) / (named ? 8 : 1) || (!named && (size - 4) % had))
        return size;
    size_t item = named ? 8 : (size - 4) / had, rest = size - 4 - had * item;
    if (had * item > sizeof items || count > (MOST_BYTES - rest - 4) / item)
        return size;
    memcpy(items, payload + 4, had * item);
    memmove(payload + 4 + count * item, payload + 4 + had * item, rest);
    memcpy(payload, &count, 4);
    for (uint32_t i = 0; i < count; i++)
        memcpy(payload + 4 + i * item, items + i % had * item, item);
    return 4 + count * item + rest;
}

/* The payload with another text at its end: after a named call's numbers, or where it is nothing but a text. */
static size_t replace_text(uint8_t *payload, size_t size, bool named, uint32_t length)
{
    uint32_t numbers = size >= 4 && named ? u32(payload) : 0;
    size_t at = named ? 4 + 8 * (size_t)numbers : 0;
    if (at + 4 > size || at + 4 + u32(payload + at) != size)
        return size;
    memcpy(payload + at, &length, 4);
    memset(payload + at + 4, 'x', length);
    return at + 4 + length;
}

/* Spoils `frame` in place and returns its new size; `*over`: the connection ends after it. */
static size_t spoil(const struct edit *edit, uint8_t *frame, size_t size, bool named, bool *over)
{
    uint32_t value = edit->value;
    size_t payload = size - HEAD;
    switch (edit->spoil) {
    case SPOIL_PAYLOAD:
        memcpy(frame + HEAD, edit->bytes ? edit->bytes : frame, edit->size);
        payload = edit->size;
        break;
    case SPOIL_FLIP:
        frame[value / 8 % size] ^= (uint8_t)(1U << value % 8);
        *over = value / 8 % size < 4; /* nobody waits here for bytes that were promised and never come */
        return size;
    case SPOIL_CUT:
        payload -= payload ? 1 + value % payload : 0;
        break;
    case SPOIL_LONGER:
        memset(frame + size, (int)(value >> 24), value % 4096 + 1);
        payload += value % 4096 + 1;
        break;
    case SPOIL_LENGTH:
        memcpy(frame, &value, sizeof value);
        *over = true;
        return size;
    case SPOIL_ID:
        memcpy(frame + 4, &value, sizeof value);
        return size;
    case SPOIL_CODE:
        memcpy(frame + 8, &value, sizeof value);
        return size;
    case SPOIL_WORD:
        if (payload >= sizeof value) {
            /* The place is in the top bits, and most of the values that matter fit below. */
            size_t at = HEAD + (value >> 26) * 4 % (payload - 3);
            uint32_t word = value & 0x3FFFFFF;
            word = word == 0x3FFFFFF ? 0xFFFFFFFF : word == 0x3FFFFFE ? 0x80000000 : word;
            memcpy(frame + at, &word, sizeof word);
        }
        return size;
    case SPOIL_HALF:
        *over = true;
        return value % size;
    case SPOIL_RAW:
        *over = true;
        memcpy(frame, edit->bytes ? edit->bytes : frame, edit->size);
        return edit->size;
    case SPOIL_CLOSE:
    case SPOIL_GONE:
        *over = true;
        return 0;
    case SPOIL_TWICE:
        memcpy(frame + size, frame, size);
        return 2 * size;
    case SPOIL_STALE:
        memmove(frame + size, frame, size);
        frame[4]--;
        return 2 * size;
    case SPOIL_NUMBERS: {
        uint32_t count = value % 32, text = value >> 24;
        memset(frame + 8, 0, 4);
        memcpy(frame + HEAD, &count, 4);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t number = value & 0x10000 ? ~(uint64_t)0 : value >> 8 & 0xFF;
            memcpy(frame + HEAD + 4 + 8 * i, &number, 8);
        }
        memcpy(frame + HEAD + 4 + 8 * count, &text, 4);
        memset(frame + HEAD + 8 + 8 * count, 'x', text);
        payload = 8 + 8 * count + text;
        break;
    }
    case SPOIL_LIST:
        payload = stretch(frame + HEAD, payload, named, value % 4097);
        break;
    case SPOIL_TEXT:
        payload = replace_text(frame + HEAD, payload, named, value % 4097);
        break;
    case SPOIL_EMPTY:
        memset(frame + 8, 0, 4);
        payload = 0;
        break;
    default:
        return size;
    }
    uint32_t length = (uint32_t)(payload + HEAD - 4);
    memcpy(frame, &length, sizeof length);
    return payload + HEAD;
}

/* Answers one request; false: the connection ends. */
static bool answer(int fd, const uint8_t *request, size_t size)
{
    static uint8_t frame[2 * (MOST_BYTES + 4096) + HEAD];
    const struct recorded *good = find(request, size);
    struct edit edit = {SPOIL_COUNT, 0, NULL, 0};
    bool over = false;
    pthread_mutex_lock(&lock);
    bool spoiled = find_edit(requests++, &edit);
    if (spoiled && edit.spoil == SPOIL_OTHER && answer_count)
        good = &answers[edit.value % answer_count];
    uint32_t payload = good->size < MOST_BYTES ? good->size : MOST_BYTES, length = payload + HEAD - 4;
    memcpy(frame, &length, 4);
    memcpy(frame + 4, request + 4, 4);
    memcpy(frame + 8, &good->code, 4);
    memcpy(frame + HEAD, good->payload, payload);
    if (!good->code)
        fit(frame + HEAD, payload, request, size);
    size_t bytes = HEAD + payload;
    if (spoiled)
        bytes = spoil(&edit, frame, bytes, u16(request) == NAMED_CALL, &over);
    if (spoiled && edit.spoil == SPOIL_GONE)
        refusals = 1 + edit.value % 4;
    pthread_mutex_unlock(&lock);
    return deliver(fd, frame, bytes, spoiled && edit.spoil == SPOIL_DRIP) && !over;
}

/* Requests are short and come whole but for the kernel's whims. */
static bool serve(int fd)
{
    uint8_t request[8192];
    size_t have = 0, need = 4;
    while (have < need) {
        ssize_t count = recv(fd, request + have, need - have, 0);
        if (count <= 0)
            return false;
        have += (size_t)count;
        if (have == 4) {
            need = 4 + u32(request);
            if (need > sizeof request || need < HEAD)
                return false;
        }
    }
    return answer(fd, request + 4, have - 4);
}

static void *run(void *argument)
{
    struct pollfd watched[1 + MOST_CONNECTIONS];
    nfds_t count = 1;
    watched[0] = (struct pollfd){.fd = *(int *)argument, .events = POLLIN};
    for (;;) {
        if (poll(watched, count, -1) < 0 && errno != EINTR)
            die("poll");
        for (nfds_t i = count - 1; i > 0; i--) {
            if (watched[i].revents && !serve(watched[i].fd)) {
                close(watched[i].fd);
                watched[i] = watched[--count];
            }
        }
        if (watched[0].revents) {
            int fd = accept(watched[0].fd, NULL, NULL);
            pthread_mutex_lock(&lock);
            bool refuse = refusals > 0 || count > MOST_CONNECTIONS;
            refusals -= refusals > 0;
            pthread_mutex_unlock(&lock);
            if (refuse && fd >= 0)
                close(fd);
            else if (fd >= 0)
                watched[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
    }
    return NULL;
}

static void remove_socket(void)
{
    unlink(address.sun_path);
    *strrchr(address.sun_path, '/') = 0;
    rmdir(address.sun_path);
}

void simulator_start(const char *answers_path)
{
    static int listener;
    char folder[] = "/tmp/tesela-fuzz-XXXXXX";
    load(answers_path);
    if (!mkdtemp(folder))
        die("mkdtemp");
    snprintf(address.sun_path, sizeof address.sun_path, "%s/sim.sock", folder);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
        die(address.sun_path);
    setenv("TESELA_SIM_SOCKET", address.sun_path, 1);
    atexit(remove_socket);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &listener))
        die("pthread_create");
    pthread_detach(thread);
}

void simulator_play(const uint8_t *new_script, size_t size)
{
    pthread_mutex_lock(&lock);
    script = new_script;
    script_size = size;
    requests = refusals = 0;
    pthread_mutex_unlock(&lock);
}
