/*
 * The process's session: counts, the simulator's address, the pool, and fork. One mutex guards it all; nothing waits
 * for the simulator while it is held, so that neither fork nor nvmlShutdown can be held up by one.
 */
#include "session.h"

#include "events.h"
#include "gpm.h"
#include "frames.h"
#include "handles.h"
#include "trouble.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/tesela/sim.sock"
#define MAX_CONNECTIONS 256 /* of this process; a call that finds none waits for another call's end */
#define MAX_IDLE 8
#define SLOT_WAIT_MS 10000
/*
 * Longer than a probe can take: connect, hello, the answer's first byte, its rest. A call that blocks when one of their
 * limits comes may go on for SILENCE_MS.
 */
#define PROBE_WAIT_MS (2 * SILENCE_MS + FRAME_MS + SILENCE_MS + 2 * SILENCE_MS + FRAME_MS)
#define PROTOCOL_VERSION 1
#define CODE_OTHER_VERSION 25U

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint initialised;
static atomic_uint epoch;
static struct sockaddr_un address;
static bool addressed;
static struct connection connections[MAX_CONNECTIONS + 1];
static struct connection *const probe = &connections[MAX_CONNECTIONS];
static int idle[MAX_IDLE];
static int idle_count;
/* A slot came back: idle or free, any call can have it, so that one of those that wait is enough to wake. */
static pthread_cond_t freed;
static pthread_cond_t probed;
static bool probing;
static unsigned int probes; /* that have ended */
static enum link last_probe;

static void close_locked(struct connection *connection)
{
    if (connection->fd >= 0)
        close(connection->fd);
    *connection = (struct connection){.state = SLOT_FREE, .fd = -1};
    pthread_cond_signal(&freed);
}

/* On a clock that nobody sets. */
static void begin_conditions(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&freed, &monotonic);
    pthread_cond_init(&probed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* False: it is `until_ms`. */
static bool wait_locked(pthread_cond_t *condition, int64_t until_ms)
{
    const struct timespec until = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    return pthread_cond_timedwait(condition, &lock, &until) == 0;
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    handles_lock();
    events_lock();
    gpm_lock();
}

static void after_fork_in_parent(void)
{
    gpm_unlock();
    events_unlock();
    handles_unlock();
    pthread_mutex_unlock(&lock);
}

/*
 * The child has the parent's descriptors but not its threads: it closes its copies, which the parent does not notice,
 * and starts as a process that never called nvmlInit. The handles it knows still name the same GPUs.
 */
static void after_fork_in_child(void)
{
    /* Threads of the parent may wait for the old ones. */
    begin_conditions();
    for (int i = 0; i <= MAX_CONNECTIONS; i++)
        if (connections[i].state != SLOT_FREE)
            close_locked(&connections[i]);
    idle_count = 0;
    probing = false;
    atomic_store(&initialised, 0);
    atomic_fetch_add(&epoch, 1);
    events_forget_locked();
    gpm_forget_locked();
    after_fork_in_parent();
}

/* At load, before there is a lock to hold: a fork that runs beside the first nvmlInit would miss handlers set by that. */
__attribute__((constructor)) static void watch_forks(void)
{
    begin_conditions();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

bool session_is_initialised(void)
{
    return atomic_load_explicit(&initialised, memory_order_acquire) > 0;
}

unsigned int session_epoch(void)
{
    return atomic_load(&epoch);
}

void session_prepare(void)
{
    const char *path = getenv("TESELA_SIM_SOCKET");
    if (!path || !*path)
        path = DEFAULT_SOCKET;
    size_t size = strlen(path);
    bool fits = size < sizeof address.sun_path;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&initialised)) {
        addressed = fits;
        memset(&address, 0, sizeof address);
        address.sun_family = AF_UNIX;
        memcpy(address.sun_path, path, fits ? size : 0);
        trouble_prepare();
    }
    pthread_mutex_unlock(&lock);
    if (!fits)
        trouble_tell(TROUBLE_PATH, path, 0);
}

void session_count_up(void)
{
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&initialised, 1);
    pthread_mutex_unlock(&lock);
}

nvmlReturn_t session_count_down(void)
{
    pthread_mutex_lock(&lock);
    if (!atomic_load(&initialised)) {
        pthread_mutex_unlock(&lock);
        return NVML_ERROR_UNINITIALIZED;
    }
    bool last = atomic_fetch_sub(&initialised, 1) == 1;
    if (last) {
        atomic_fetch_add(&epoch, 1);
        while (idle_count)
            close_locked(&connections[idle[--idle_count]]);
        for (int i = 0; i < MAX_CONNECTIONS; i++)
            if (connections[i].interruptible)
                shutdown(connections[i].fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&lock);
    if (last) {
        events_forget();
        gpm_forget();
    }
    return NVML_SUCCESS;
}

/* Never standard input, output or error, where the client closed those: what it prints would reach the simulator. */
static int open_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return higher;
}

/* For a slot that is the caller's. The socket is in it before the lock is free, so that a fork finds every descriptor. */
static enum trouble open_slot(struct connection *slot, struct sockaddr_un *to)
{
    pthread_mutex_lock(&lock);
    enum trouble trouble = addressed ? TROUBLE_SOCKET : TROUBLE_PATH;
    *to = address;
    if (addressed && (slot->fd = open_socket()) >= 0)
        trouble = TROUBLE_NONE;
    pthread_mutex_unlock(&lock);
    return trouble;
}

static enum link greet(int fd)
{
    unsigned char bytes[256];
    struct writer out = {bytes, 0, sizeof bytes, false};
    put_u32(&out, REQUEST_HEADER_BYTES + 8);
    put_u16(&out, 0);
    put_u16(&out, 0);
    put_u32(&out, 0);
    put_bytes(&out, "TSIM", 4);
    put_u16(&out, PROTOCOL_VERSION);
    put_u16(&out, PROTOCOL_VERSION);
    if (frame_send(fd, out.bytes, out.size) != LINK_OK)
        return LINK_LOST;
    struct answer answer = {.small = bytes, .room = sizeof bytes};
    enum link link = frame_receive(fd, &answer, NULL);
    if (link == LINK_OK) {
        uint32_t id = take_u32(&answer.body), code = take_u32(&answer.body);
        uint16_t version = code ? PROTOCOL_VERSION : take_u16(&answer.body);
        (void)take_text(&answer.body);
        if (!is_finished(&answer.body) || id || version != PROTOCOL_VERSION)
            link = LINK_BAD;
        else if (code)
            link = code == CODE_OTHER_VERSION ? LINK_OTHER : LINK_BAD;
    }
    free(answer.heap);
    return link;
}

/* Whoever has the slot uses its descriptor without the lock: only the owner closes it, and only a child of fork else. */
static enum trouble connect_slot(const struct connection *slot, const struct sockaddr_un *to)
{
    const struct timeval silence = {.tv_sec = SILENCE_MS / 1000};
    int64_t until = clock_ms() + SILENCE_MS;
    int connected;
    if (setsockopt(slot->fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) ||
        setsockopt(slot->fd, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence))
        return TROUBLE_SOCKET;
    do
        connected = connect(slot->fd, (const struct sockaddr *)to, sizeof *to);
    while (connected && errno == EINTR && clock_ms() < until);
    return connected && errno != EISCONN ? TROUBLE_CONNECT : TROUBLE_NONE;
}

static enum trouble trouble_of(enum link link)
{
    switch (link) {
    case LINK_LOST:
    case LINK_CLOSED:
        return TROUBLE_SILENCE;
    case LINK_BAD:
        return TROUBLE_BAD;
    case LINK_OTHER:
        return TROUBLE_OTHER;
    case LINK_OK:
    case LINK_FULL:
    case LINK_NO_SOCKET:
    case LINK_NO_MEMORY:
        break;
    }
    return TROUBLE_NONE;
}

static enum link link_without(enum trouble trouble, int number)
{
    if (trouble == TROUBLE_SOCKET)
        return LINK_NO_SOCKET;
    /* EAGAIN: it lives, or stands still, and as many as the system lets wait are waiting for it. */
    return trouble == TROUBLE_CONNECT && number == EAGAIN ? LINK_FULL : LINK_LOST;
}

/* Closes the slot where it is not LINK_OK. */
static enum link open_connection(struct connection *slot)
{
    struct sockaddr_un to;
    errno = 0;
    enum trouble trouble = open_slot(slot, &to);
    if (trouble == TROUBLE_NONE)
        trouble = connect_slot(slot, &to);
    int number = trouble == TROUBLE_NONE ? 0 : errno;
    enum link link = link_without(trouble, number);
    if (trouble == TROUBLE_NONE) {
        link = greet(slot->fd);
        trouble = trouble_of(link);
    }
    if (link != LINK_OK)
        connection_close(slot);
    if (trouble != TROUBLE_PATH) /* session_prepare has told it, with the path */
        trouble_tell(trouble, to.sun_path, number);
    return link;
}

/* Idle if `idle_too`, else free. Where only idle ones are left and none is wanted, one of them is closed for it. */
static struct connection *take_slot_locked(bool idle_too)
{
    if (idle_too && idle_count)
        return &connections[idle[--idle_count]];
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (connections[i].state == SLOT_FREE)
            return &connections[i];
    if (!idle_count)
        return NULL;
    struct connection *slot = &connections[idle[--idle_count]];
    close_locked(slot);
    return slot;
}

enum link connection_take(struct connection **out, bool idle_too)
{
    pthread_mutex_lock(&lock);
    struct connection *slot = take_slot_locked(idle_too);
    if (!slot) {
        int64_t until = clock_ms() + SLOT_WAIT_MS;
        bool in_time = true;
        while (!(slot = take_slot_locked(idle_too)) && in_time)
            in_time = wait_locked(&freed, until);
    }
    bool is_new = slot && slot->state == SLOT_FREE;
    if (is_new)
        *slot = (struct connection){.fd = -1, .epoch = atomic_load(&epoch)};
    if (slot)
        slot->state = SLOT_USED;
    const struct sockaddr_un to = address;
    pthread_mutex_unlock(&lock);
    *out = NULL;
    if (!slot) {
        trouble_tell(TROUBLE_SLOTS, to.sun_path, 0);
        return LINK_FULL;
    }
    enum link link = is_new ? open_connection(slot) : LINK_OK;
    if (link == LINK_OK)
        *out = slot; /* else it is closed, and may be another call's by now */
    return link;
}

void connection_give_back(struct connection *connection)
{
    pthread_mutex_lock(&lock);
    connection->interruptible = false;
    if (connection->epoch == atomic_load(&epoch) && atomic_load(&initialised) && idle_count < MAX_IDLE) {
        connection->state = SLOT_IDLE;
        idle[idle_count++] = (int)(connection - connections);
        pthread_cond_signal(&freed);
    } else {
        close_locked(connection);
    }
    pthread_mutex_unlock(&lock);
}

void connection_close(struct connection *connection)
{
    pthread_mutex_lock(&lock);
    close_locked(connection);
    pthread_mutex_unlock(&lock);
}

enum link connection_interruptible(struct connection *connection)
{
    pthread_mutex_lock(&lock);
    bool ours = connection->epoch == atomic_load(&epoch) && atomic_load(&initialised);
    connection->interruptible = ours;
    pthread_mutex_unlock(&lock);
    return ours ? LINK_OK : LINK_LOST;
}

/* Many calls may be silent at once: one of them asks, and the others take its answer for theirs. */
enum link simulator_answers(void)
{
    pthread_mutex_lock(&lock);
    if (probing) {
        unsigned int before = probes;
        int64_t until = clock_ms() + PROBE_WAIT_MS;
        while (probes == before && wait_locked(&probed, until))
            ;
        enum link link = probes == before ? LINK_LOST : last_probe;
        pthread_mutex_unlock(&lock);
        return link;
    }
    probing = true;
    *probe = (struct connection){.state = SLOT_USED, .fd = -1, .epoch = atomic_load(&epoch)};
    pthread_mutex_unlock(&lock);
    enum link link = open_connection(probe);
    if (link == LINK_OK)
        connection_close(probe);
    if (link == LINK_BAD || link == LINK_OTHER)
        link = LINK_LOST;
    pthread_mutex_lock(&lock);
    probing = false;
    last_probe = link;
    probes++;
    pthread_cond_broadcast(&probed);
    pthread_mutex_unlock(&lock);
    return link;
}
