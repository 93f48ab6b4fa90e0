"""Marks of calls: seen by every process as long as the call lasts, and by nobody afterwards."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest
from tesela.core.errors import StateError, TryAgain
from tesela.edge.store.call_marks import CallMarks
from tesela.edge.store.locks import FileLocks

CALL = "nvmlGpuInstanceDestroy"
HOLD_UNTIL_KILLED = """
import sys
from pathlib import Path
from tesela.edge.store.call_marks import CallMarks
with CallMarks(Path(sys.argv[1])).hold("GPU-1", "nvmlGpuInstanceDestroy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def marks(tmp_path):
    return CallMarks(tmp_path / "locks")


def test_no_call_is_found_where_none_was_ever_made(marks):
    assert marks.find("GPU-1") is None


def test_a_call_is_found_while_it_lasts(marks):
    with marks.hold("GPU-1", CALL):
        found = marks.find("GPU-1")

    assert found == f"{CALL} of process {os.getpid()} on {os.uname().nodename}"


def test_a_call_that_has_returned_is_not_found(marks):
    with marks.hold("GPU-1", CALL):
        pass

    assert marks.find("GPU-1") is None


def test_a_call_that_failed_is_not_found(marks):
    with pytest.raises(ZeroDivisionError), marks.hold("GPU-1", CALL):
        raise ZeroDivisionError

    assert marks.find("GPU-1") is None


def test_a_call_on_another_gpu_is_not_found(marks):
    with marks.hold("GPU-1", CALL):
        assert marks.find("GPU-2") is None


def test_a_call_waits_for_no_other(marks):
    with marks.hold("GPU-1", CALL), marks.hold("GPU-1", "nvmlDeviceSetMigMode"):
        assert marks.find("GPU-1").startswith("nvmlDeviceSetMigMode of process ")


def test_a_call_is_found_until_the_last_has_returned(marks):
    with marks.hold("GPU-1", CALL):
        with marks.hold("GPU-1", CALL):
            pass
        assert marks.find("GPU-1") is not None


@pytest.fixture
def other_process(marks, tmp_path):
    command = [sys.executable, "-c", HOLD_UNTIL_KILLED, str(tmp_path / "locks")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout.readline() == b"held\n"
        yield child
        child.kill()


def test_a_call_of_another_process_is_found(marks, other_process):
    assert f"of process {other_process.pid} on" in marks.find("GPU-1")


def test_a_call_ends_with_its_process(marks, other_process):
    other_process.kill()
    other_process.wait(20)

    assert marks.find("GPU-1") is None


def test_a_file_that_was_removed_meanwhile_hides_no_call(marks, tmp_path):
    with marks.hold("GPU-1", CALL):
        pass
    (tmp_path / "locks" / "call-GPU-1.lock").unlink()

    with marks.hold("GPU-1", CALL):
        assert marks.find("GPU-1") is not None


def test_a_mark_that_a_stranger_keeps_refuses_the_call(marks, tmp_path):
    with marks.hold("GPU-1", CALL):
        pass
    with (tmp_path / "locks" / "call-GPU-1.lock").open() as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        with (
            pytest.raises(TryAgain, match="is locked by a process that is none of tesela's"),
            marks.hold("GPU-1", CALL),
        ):
            pass


def test_a_name_that_is_no_uuid_gets_no_file(marks):
    with pytest.raises(StateError, match="is not the UUID of a GPU"), marks.hold("../x", CALL):
        pass


def test_the_marks_lie_beside_the_locks(tmp_path):
    with FileLocks(tmp_path).call_marks.hold("GPU-1", CALL):
        assert [path.name for path in FileLocks(tmp_path).folder.iterdir()] == ["call-GPU-1.lock"]
