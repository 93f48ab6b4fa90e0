"""The pool of connections where it is exhausted, and probes: asked within, as no call from outside can.

The program is compiled from the sources of the session and of what that needs.
"""

import socket
import subprocess

import pytest
from nvml import library as lib
from nvml.needs import COMPILER, library
from polling import until

pytestmark = library("compiler")

SOURCES = ("session", "frames", "wire", "trouble", "handles", "events", "gpm", "call", "named")
PROGRAM = r"""
#include "session.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ALL 256
#define IDLE 8

struct thread {
    pthread_t id;
    enum link (*what)(void);
    volatile pid_t tid;
    enum link link;
};

static void *run(void *argument)
{
    struct thread *thread = argument;
    thread->tid = gettid();
    thread->link = thread->what();
    return NULL;
}

static int is_asleep(const struct thread *thread)
{
    char path[64], state = 'R';
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread->tid);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            state = 'R';
        fclose(file);
    }
    return state == 'S';
}

/* Returns once it waits. */
static void start(struct thread *thread, enum link (*what)(void))
{
    *thread = (struct thread){.what = what};
    pthread_create(&thread->id, NULL, run, thread);
    while (!thread->tid || !is_asleep(thread))
        usleep(1000);
}

static enum link take(bool idle_too)
{
    struct connection *connection;
    enum link link = connection_take(&connection, idle_too);
    if (link == LINK_OK)
        connection_give_back(connection);
    return link;
}

static enum link take_any(void)
{
    return take(true);
}

static enum link take_new(void)
{
    return take(false);
}

static void two(enum link (*first)(void), enum link (*second)(void), struct connection *given_back)
{
    struct thread threads[2];
    start(&threads[0], first);
    start(&threads[1], second);
    if (given_back)
        connection_give_back(given_back);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i].id, NULL);
        printf("%d\n", threads[i].link);
    }
}

int main(int count, char **words)
{
    static struct connection *all[ALL];
    session_prepare();
    session_count_up();
    if (count != 2)
        return 2;
    if (!strcmp(words[1], "probe"))
        return two(simulator_answers, simulator_answers, NULL), 0;
    for (int i = 0; i < ALL; i++)
        if (connection_take(&all[i], false) != LINK_OK)
            return 3;
    if (!strcmp(words[1], "waiting"))
        return two(take_new, take_any, all[0]), 0;
    for (int i = 0; i < IDLE; i++)
        connection_give_back(all[i]);
    printf("%d\n", take_new());
    return 0;
}
"""
OK = "0\n"
HELLO = bytes.fromhex("11000000 00000000 00000000 0100 03000000") + b"570"
"""The answer to a hello of a simulator of version 1."""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder, sources = tmp_path_factory.mktemp("pool"), lib.ROOT / "nvml-sim"
    (folder / "pool.c").write_text(PROGRAM)
    files = [folder / "pool.c", *(sources / f"{name}.c" for name in SOURCES)]
    command = [COMPILER, "-std=c11", "-D_GNU_SOURCE", "-pthread", f"-I{sources}", "-o", folder / "pool", *files]
    subprocess.run(command, check=True)
    return folder / "pool"


def run(program, word: str) -> str:
    done = subprocess.run([program, word], stdout=subprocess.PIPE, text=True, check=True, timeout=50)
    return done.stdout


def test_a_new_connection_where_only_idle_ones_are_left(program, server):
    assert lib.Thread(lambda: run(program, "idle")).result(8) == OK


def test_a_connection_that_comes_back_serves_who_waits_for_a_new_one_and_who_for_any(program, server):
    assert lib.Thread(lambda: run(program, "waiting")).result(8) == OK * 2


def test_a_probe_of_a_slow_simulator_is_waited_for_to_its_end(program, socket_path):
    # Each step is within its limit, 5 s, 5 s and 10 s.
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(socket_path))
        listener.listen(0)
        first.connect(str(socket_path))
        probes = lib.Thread(lambda: run(program, "probe"))
        until(lambda: False, 3.5)
        listener.accept()[0].close()
        with listener.accept()[0] as connection:
            connection.recv(1 << 16)
            until(lambda: False, 3.5)
            connection.sendall(HELLO[:1])
            until(lambda: False, 8.5)
            connection.sendall(HELLO[1:])
            assert probes.result(5) == OK * 2
