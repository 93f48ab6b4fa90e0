"""Locks between threads and between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading

import pytest
from tesela.core.errors import ClaimRefused, StateError, TryAgain
from tesela.edge.store import locks as locks_module
from tesela.edge.store.locks import FileLocks, hold

HOLD_UNTIL_STDIN_CLOSES = """
import sys
from pathlib import Path
from tesela.edge.store.locks import FileLocks
lock = FileLocks(Path(sys.argv[1])).gpu_lock("GPU-1")
print(lock.acquire(5), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locks(tmp_path):
    return FileLocks(tmp_path)


@contextlib.contextmanager
def held_by_another_process(state_dir):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD_UNTIL_STDIN_CLOSES, str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"True\n"
        try:
            yield child
        finally:
            child.kill()


def test_a_lock_that_another_process_holds_is_held_elsewhere(locks, tmp_path):
    with held_by_another_process(tmp_path):
        assert locks.gpu_lock("GPU-1").is_held_elsewhere()


def test_a_lock_that_this_process_holds_is_not_held_elsewhere(locks):
    with hold(locks.gpu_lock("GPU-1"), 0, "GPU"):
        assert not locks.gpu_lock("GPU-1").is_held_elsewhere()


def test_the_question_makes_no_lock(locks):
    lock = locks.gpu_lock("GPU-1")

    assert (lock.is_held_elsewhere(), lock.path.exists()) == (False, False)


def test_a_lock_that_was_let_go_is_held_nowhere_and_can_be_had(locks):
    with hold(locks.gpu_lock("GPU-1"), 0, "GPU"):
        pass
    lock = locks.gpu_lock("GPU-1")

    assert (lock.is_held_elsewhere(), lock.acquire(0)) == (False, True)
    lock.release()


def test_a_lock_that_two_ask_for_at_once_is_held_nowhere(locks, tmp_path):
    lock = locks.gpu_lock("GPU-1")
    with held_by_another_process(tmp_path):
        pass
    with lock.path.open("r+") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)

        assert not lock.is_held_elsewhere()


def test_a_free_lock_is_taken_at_once(locks):
    lock = locks.claim_lock("uid-1")

    with hold(lock, 0, "claim"):
        assert lock.held


def test_a_held_lock_is_not_taken_by_another_object(locks):
    with hold(locks.gpu_lock("GPU-1"), 0, "GPU"):
        assert not locks.gpu_lock("GPU-1").acquire(0.01)


def test_locks_of_different_gpus_do_not_meet(locks):
    with hold(locks.gpu_lock("GPU-1"), 0, "GPU"), hold(locks.gpu_lock("GPU-2"), 0, "GPU") as second:
        assert second.held


def test_a_released_lock_is_free(locks):
    with hold(locks.roster_lock(), 0, "roster"):
        pass

    with hold(locks.roster_lock(), 0, "roster") as again:
        assert again.held


def test_a_lock_is_released_when_its_block_fails(locks):
    lock = locks.publisher_lock()
    with pytest.raises(ZeroDivisionError), hold(lock, 0, "publisher"):
        raise ZeroDivisionError

    assert not lock.held


def test_two_stores_over_one_folder_share_the_lock(tmp_path):
    with hold(FileLocks(tmp_path).gpu_lock("GPU-1"), 0, "GPU"):
        assert not FileLocks(tmp_path / ".." / tmp_path.name).gpu_lock("GPU-1").acquire(0)


def test_a_thread_waits_until_the_lock_is_free(locks):
    taken = threading.Event()

    def wait_and_take():
        with hold(locks.gpu_lock("GPU-1"), 10, "GPU"):
            taken.set()

    with hold(locks.gpu_lock("GPU-1"), 0, "GPU"):
        thread = threading.Thread(target=wait_and_take)
        thread.start()
        assert not taken.is_set()
    thread.join(10)

    assert taken.is_set()


def test_a_held_lock_names_what_and_who(locks):
    expected = f"GPU GPU-1 is in use by process {os.getpid()} on .* within 0.01 s"
    with (
        hold(locks.gpu_lock("GPU-1"), 0, "GPU GPU-1"),
        pytest.raises(TryAgain, match=expected),
        hold(locks.gpu_lock("GPU-1"), 0.01, "GPU GPU-1"),
    ):
        pass


def test_another_process_keeps_the_lock(tmp_path, locks):
    with held_by_another_process(tmp_path):
        assert not locks.gpu_lock("GPU-1").acquire(0.02)


def test_another_process_is_named(tmp_path, locks):
    with held_by_another_process(tmp_path) as child:
        assert locks.gpu_lock("GPU-1").get_holder().startswith(f"process {child.pid} on ")


def test_a_killed_process_frees_its_locks(tmp_path, locks):
    with held_by_another_process(tmp_path) as child:
        child.kill()

        with hold(locks.gpu_lock("GPU-1"), 10, "GPU") as lock:
            assert lock.held


def test_a_discarded_lock_leaves_no_file(locks):
    lock = locks.claim_lock("uid-1")
    with hold(lock, 0, "claim"):
        lock.discard()

    assert not lock.path.exists()


def test_only_the_holder_may_discard(locks):
    with pytest.raises(StateError, match="may be removed only by whoever holds it"):
        locks.claim_lock("uid-1").discard()


def test_who_waited_for_a_discarded_file_takes_the_new_one(locks):
    lock = locks.claim_lock("uid-1")
    lock.path.parent.mkdir()
    with lock.path.open("wb") as old:
        fcntl.flock(old, fcntl.LOCK_EX)  # another process, as the kernel sees it
        waiter_took = threading.Event()

        def wait_and_take():
            with hold(lock, 10, "claim"):
                waiter_took.set()

        thread = threading.Thread(target=wait_and_take)
        thread.start()
        lock.path.unlink()
        thread.join(10)

    assert waiter_took.is_set()


def test_a_lock_is_not_reentrant_and_says_so(locks):
    with hold(locks.gpu_lock("GPU-1"), 0, "GPU") as lock, pytest.raises(StateError, match="taken already"):
        lock.acquire(0)


def test_nothing_stays_in_memory_of_a_released_lock(locks):
    lock = locks.claim_lock("uid-of-memory")
    with hold(lock, 0, "claim"):
        pass

    assert not [key for key in locks_module._in_process if "uid-of-memory" in key]


def test_only_one_of_many_threads_is_inside(locks):
    inside, seen = [], []

    def enter(number):
        lock = locks.claim_lock("uid-1")
        with hold(lock, 30, "claim"):
            inside.append(number)
            seen.append(len(inside))
            inside.remove(number)
            if number % 2:
                lock.discard()

    threads = [threading.Thread(target=enter, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert seen == [1] * 16


def test_a_folder_that_cannot_be_made_is_an_error_not_a_wait(tmp_path):
    (tmp_path / "state").write_bytes(b"")

    with pytest.raises(StateError, match="cannot lock"):
        FileLocks(tmp_path / "state").gpu_lock("GPU-1").acquire(10)


def test_a_claim_uid_that_is_a_path_has_no_lock(locks):
    with pytest.raises(ClaimRefused):
        locks.claim_lock("../x")


def test_a_gpu_uuid_that_is_a_path_has_no_lock(locks):
    with pytest.raises(StateError, match="not the UUID of a GPU"):
        locks.gpu_lock("../x")
