"""The host's nvidia-smi, with a script in its place that writes down how it was called."""

from __future__ import annotations

import pytest
from tesela.core.errors import TryAgain
from tesela.edge.host.nvidia_smi import NvidiaSmi


def install(root, script, path="usr/bin/nvidia-smi"):
    program = root / path
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_the_interval_is_set_after_the_compute_mode(tmp_path):
    install(tmp_path, f'echo "$@" >> {tmp_path}/calls')

    NvidiaSmi(driver_root_mount=tmp_path).set_time_slice("GPU-1", "Long")

    assert (tmp_path / "calls").read_text().splitlines() == [
        "-i GPU-1 -c DEFAULT",
        "compute-policy -i GPU-1 --set-timeslice 3",
    ]


def test_a_program_may_lie_elsewhere(tmp_path):
    program = install(tmp_path, f"touch {tmp_path}/called", "elsewhere/smi")

    NvidiaSmi(path=program).set_time_slice("GPU-1", "Default")

    assert (tmp_path / "called").exists()


def test_what_the_program_says_is_passed_on(tmp_path):
    install(tmp_path, "echo 'Insufficient   Permissions' >&2; exit 4")

    expected = r"set the time slice of GPU GPU-1 to Short: `nvidia-smi -i GPU-1 -c DEFAULT` ended with 4 and said: Ins"
    with pytest.raises(TryAgain, match=expected):
        NvidiaSmi(driver_root_mount=tmp_path).set_time_slice("GPU-1", "Short")


def test_a_program_that_hangs_is_given_up(tmp_path):
    install(tmp_path, "exec sleep 600")

    with pytest.raises(TryAgain, match=r"took over 0\.1 s"):
        NvidiaSmi(driver_root_mount=tmp_path, timeout_s=0.1).set_time_slice("GPU-1", "Short")


def test_a_missing_program_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(TryAgain, match=f"no nvidia-smi in usr/bin, .* below {tmp_path}: point --driver-root-mount"):
        NvidiaSmi(driver_root_mount=tmp_path).set_time_slice("GPU-1", "Short")


def test_a_file_that_is_no_program_is_said(tmp_path):
    install(tmp_path, "true").chmod(0o644)

    with pytest.raises(TryAgain, match="Permission denied"):
        NvidiaSmi(driver_root_mount=tmp_path).set_time_slice("GPU-1", "Short")
