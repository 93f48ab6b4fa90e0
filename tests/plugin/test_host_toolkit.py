"""The host's nvidia-ctk, with a script in its place. The real one runs in tests/e2e/test_driver_libraries.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from elf_files import install_libraries, install_toolkit
from polling import until
from tesela.core.errors import TryAgain
from tesela.edge.host.driver_files import DriverTree
from tesela.edge.host.toolkit import Toolkit

VERSION = "580.95.05"


def make_toolkit(root, **fields):
    return Toolkit(DriverTree(driver_root=Path("/host"), driver_root_mount=root), **fields)


def is_running(pid):
    """Whether the process is there and has not ended: who ends it may not be who waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_it_describes_has_the_hosts_paths(tmp_path):
    install_libraries(tmp_path, VERSION)
    install_toolkit(tmp_path, VERSION)

    edits = make_toolkit(tmp_path).generate()

    assert (edits.mounts[0].host_path, edits.hooks[0].path) == (
        f"/host/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}",
        "/host/usr/bin/nvidia-cdi-hook",
    )


def test_it_is_asked_for_what_all_devices_have_in_common(tmp_path):
    """With every GPU in MIG mode and no partition, NVIDIA's refuses a document without a device."""
    install_toolkit(tmp_path, VERSION)

    make_toolkit(tmp_path).generate()

    assert "--device-id=none" in (tmp_path / "ctk-calls").read_text()


def test_one_that_does_not_know_that_flag_is_asked_without(tmp_path):
    document = '{"containerEdits": {"env": ["A=b"]}}'
    script = f"""case "$*" in *--device-id*) exit 1;; esac; echo '{document}'"""
    install_toolkit(tmp_path, VERSION, says=script)

    assert make_toolkit(tmp_path).generate().environment == ("A=b",)


def test_a_missing_one_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(TryAgain, match=rf"no nvidia-ctk in usr/bin, .*, usr/local/nvidia/toolkit below {tmp_path}"):
        make_toolkit(tmp_path).generate()


def test_the_last_error_of_its_log_is_passed_on(tmp_path):
    log = 'time="x" level=warning msg="fine"\\ntime="x" level=error msg="failed: Driver Not Loaded"'
    install_toolkit(tmp_path, VERSION, says=f"printf '{log}' >&2; exit 1")

    with pytest.raises(
        TryAgain, match=r"`/usr/bin/nvidia-ctk cdi generate` .*ended with 1 and said: failed: Driver Not"
    ):
        make_toolkit(tmp_path).generate()


def test_one_that_hangs_is_given_up(tmp_path):
    install_toolkit(tmp_path, VERSION, says="exec sleep 600")

    with pytest.raises(TryAgain, match=r"did not end within 0\.3 s"):
        make_toolkit(tmp_path, timeout_s=0.3).generate()


@pytest.mark.parametrize(
    ("then", "timeout_s", "problem"), [("wait", 3, "did not end"), ("exec yes", 30, "prints more")]
)
def test_what_a_script_has_started_goes_with_it(tmp_path, then, timeout_s, problem):
    """It is a client of NVML, and would keep the kernel module in use."""
    install_toolkit(tmp_path, VERSION, says=f"sleep 600 & echo $! > {tmp_path}/pid; {then}")
    with pytest.raises(TryAgain, match=problem):
        make_toolkit(tmp_path, timeout_s=timeout_s).generate()

    pid = int((tmp_path / "pid").read_text())

    assert until(lambda: not is_running(pid))


def test_one_that_prints_something_else_is_refused(tmp_path):
    install_toolkit(tmp_path, VERSION, says="echo hello")

    with pytest.raises(TryAgain, match="prints what is no CDI document: no JSON"):
        make_toolkit(tmp_path).generate()


@pytest.mark.parametrize("where", ["1", "2"])
def test_one_that_prints_without_end_is_given_up(tmp_path, where):
    install_toolkit(tmp_path, VERSION, says=f"exec yes >&{where}")

    with pytest.raises(TryAgain, match="prints more than 4 MiB"):
        make_toolkit(tmp_path).generate()


def test_one_whose_output_is_kept_open_by_what_it_started_is_given_up(tmp_path):
    install_toolkit(tmp_path, VERSION, says="sleep 600 & exit 0")

    with pytest.raises(TryAgain, match=r"did not end within 0\.5 s"):
        make_toolkit(tmp_path, timeout_s=0.5).generate()


def test_a_file_that_is_no_program_is_said(tmp_path):
    install_toolkit(tmp_path, VERSION).chmod(0o644)

    with pytest.raises(TryAgain, match="cannot be run: Permission denied"):
        make_toolkit(tmp_path).generate()
