"""`tesela sim`: the simulator as a process, and the commands that act on it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from contract.sim_command import TESELA, run, served
from polling import until
from tesela.cli import sim
from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.edge.backends import open_nvml
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang, Latency
from tesela.edge.simulator.frames import FrameStream
from tesela.edge.simulator.models import list_models
from tesela.edge.simulator.remote import RemoteNvml

PROGRAM = """
import argparse, sys
from tesela.cli import sim
parser = argparse.ArgumentParser(prog="tesela sim")
sim.add_arguments(parser)
sys.exit(sim.run(parser.parse_args()))
"""


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "sim.sock", "a100-40gb:mig,h100-80gb") as server:
        yield server


@pytest.fixture
def process(tmp_path):
    """`tesela sim serve` of two GPUs with a host tree, once it serves."""
    arguments = [
        "serve",
        "--gpus",
        "a100-40gb:mig*2",
        "--socket",
        str(tmp_path / "s"),
        "--host-root",
        str(tmp_path / "h"),
    ]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("serving 2 simulated GPUs")
    yield process
    process.kill()
    process.wait(timeout=10)
    process.stdout.close()


def test_a_partition_made_over_the_socket_shows_in_the_host_tree(process, tmp_path):
    nvml = open_nvml(f"simulated:unix:{tmp_path / 's'}")
    nvml.init()
    gpu = nvml.get_uuid(1)
    instance = nvml.create_gpu_instance(gpu, 9, Placement(start=4, size=4))
    nvml.shutdown()
    assert (tmp_path / f"h/proc/driver/nvidia/capabilities/gpu1/mig/gi{instance.gi_id}/access").exists()


def test_a_second_simulator_leaves_the_tree_alone(process, tmp_path):
    arguments = ["serve", "--gpus", "a30", "--socket", str(tmp_path / "other"), "--host-root", str(tmp_path / "h")]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "another simulator keeps" in done.stderr) == (sim.EXIT_USAGE, True)


def test_sigterm_ends_the_simulator_cleanly(process, tmp_path):
    process.send_signal(signal.SIGTERM)
    assert (process.wait(timeout=10), os.path.lexists(tmp_path / "s")) == (0, False)


@pytest.mark.parametrize(
    ("gpus", "problem"), [("z9", "no GPU model"), ("a30*40", "asks for 40 GPUs"), ("a30:", "cannot read")]
)
def test_a_machine_nobody_could_build_is_not_served(tmp_path, capsys, gpus, problem):
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    code = sim.run(parser.parse_args(["serve", "--gpus", gpus, "--socket", str(tmp_path / "s")]))
    assert (code, problem in capsys.readouterr().err) == (sim.EXIT_USAGE, True)


def test_status_for_people(server, capsys):
    run(server, "status")
    assert "NVIDIA A100-SXM4-40GB 00000000:07:00.0 minor 0 MIG on" in capsys.readouterr().out


def test_status_for_programs(server, capsys):
    run(server, "status", "-o", "json")
    assert [g["model"] for g in json.loads(capsys.readouterr().out)["gpus"]] == ["a100-40gb", "h100-80gb"]


def test_status_for_programs_tells_what_looking_out_for_requests_cost(server, capsys):
    run(server, "status", "-o", "json")
    before_s = json.loads(capsys.readouterr().out)["watched_s"]
    FrameStream.watched_s += 1
    run(server, "status", "-o", "json")
    assert 1 <= json.loads(capsys.readouterr().out)["watched_s"] - before_s < 2


def test_status_tells_a_pending_mode_a_lost_gpu_and_a_process(server, capsys):
    run(server, "lose", "1")
    run(server, "busy", "0", "77", "--name", "trainer")
    capsys.readouterr()
    run(server, "status")
    text = capsys.readouterr().out
    assert ["LOST" in text, "process 77 trainer (compute)" in text] == [True, True]


@pytest.mark.parametrize("code", ["IN_USE", "nvml_error_in_use", "19"])
def test_fail(server, code):
    run(server, "fail", "nvmlGpuInstanceDestroy", code, "--times", "3", "--after", "1")
    assert server.machine.misbehaviours() == (
        Fault(function="nvmlGpuInstanceDestroy", code=codes.IN_USE, times=3, after=1),
    )


@pytest.mark.parametrize("code", ["ARCHITECTURE_HOPPER", "MIG_ENABLED", "HIGHEST_RETURN_CODE"])
def test_only_return_codes_have_names(server, capsys, code):
    with pytest.raises(SystemExit):
        run(server, "fail", "get_name", code)
    assert "is no return code; close to it are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["31"], "CODE: NVML has no return code 31"),
        (["19", "--times", "0"], "--times: 0 is no number of calls"),
        (["19", "--after", "-1"], "--after: -1 is no number of calls"),
        (["19", "--times", "2", "--forever"], "--times: says how many calls"),
        (["--activation-status", "IN_USE"], "--activation-status: only nvmlDeviceSetMigMode has one"),
    ],
)
def test_a_fault_that_no_call_could_meet_is_refused(server, capsys, words, problem):
    assert run(server, "fail", "get_name", *words) == sim.EXIT_REFUSED
    assert problem in capsys.readouterr().err


@pytest.fixture
def stuck(server):
    """A call that hangs and whose client has gone."""
    server.machine.inject(Hang(function="create_gpu_instance"))
    gpu = server.machine.gpu("0").uuid
    nvml = RemoteNvml(server.path, timeout_s=1)
    nvml.init()
    with pytest.raises(NvmlError):
        nvml.create_gpu_instance(gpu, 19, Placement(start=0, size=1))
    nvml.shutdown()


def test_status_for_programs_tells_the_calls_under_way(server, stuck, capsys):
    run(server, "status", "-o", "json")
    calls = [(call["function"], call["phase"]) for call in json.loads(capsys.readouterr().out)["calls"]]
    assert calls == [("nvmlDeviceCreateGpuInstanceWithPlacement", "hung")]


def test_status_for_people_tells_the_calls_under_way(server, stuck, capsys):
    run(server, "status")
    assert "under way: nvmlDeviceCreateGpuInstanceWithPlacement on GPU-" in capsys.readouterr().out


def test_a_call_whose_client_died_is_finished_as_a_kernel_would(server, stuck):
    run(server, "release")
    until(lambda: not server.machine.list_calls())
    assert len(server.machine.gpu("0").instances) == 1


def test_hang_and_release(server):
    run(server, "hang", "get_name", "--gpu", "0", "--forever")
    gpu = server.machine.gpu("0").uuid
    armed = server.machine.misbehaviours()
    run(server, "release")
    assert (armed, server.machine.misbehaviours()) == ((Hang(function="get_name", gpu=gpu, times=None),), ())


def test_status_tells_what_is_injected(server, capsys):
    run(server, "fail", "nvmlDeviceGetCount", "IN_USE", "--after", "2")
    run(server, "slow", "*", "0.001")
    run(server, "status")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "injected fault: function nvmlDeviceGetCount, code IN_USE, after 2, times 1",
        "injected latency: function *, seconds 0.001",
    ]


def test_a_latency_that_ends(server):
    run(server, "slow", "nvmlDeviceGetCount", "0.5", "--after", "1", "--times", "2")
    assert server.machine.misbehaviours() == (Latency(function="nvmlDeviceGetCount", seconds=0.5, after=1, times=2),)


@pytest.mark.parametrize("words", [("nvmlDeviceGetHandleByIndex", "NO_DATA"), ("nvmlDeviceGetIrqNum", "NOT_SUPPORTED")])
def test_names_that_people_know_may_fail(server, words):
    assert run(server, "fail", *words) == 0


def test_a_name_that_is_nearly_right_gets_three_and_not_all(server, capsys):
    assert run(server, "fail", "nvmlDeviceGetNmae", "IN_USE") == sim.EXIT_REFUSED
    problem = capsys.readouterr().err
    assert problem.startswith("tesela sim: FUNCTION: 'nvmlDeviceGetNmae' is no NVML function")
    assert len(problem) < 250


def test_all_names_are_listed(server, capsys):
    with pytest.raises(SystemExit) as left:
        run(server, "fail", "--list")
    lines = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert left.value.code == 0
    assert {"nvmlDeviceGetName", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetIrqNum", "21 NO_DATA"} <= lines


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("busy", "0", "7", "--ci", "0"), sim.EXIT_USAGE, "--ci needs --gi"),
        (("xid", "0", "94", "--ci", "0"), sim.EXIT_USAGE, "--ci needs --gi"),
        (("ecc", "0"), sim.EXIT_USAGE, "give one of --corrected, --uncorrected, --mode"),
        (("remap", "0"), sim.EXIT_USAGE, "give one of --correctable, --uncorrectable, --pending, --failure"),
        (("busy", "0", "7", "--gi", "3"), sim.EXIT_REFUSED, "--gi: GPU"),
        (("busy", "0", "7", "--memory-mib", "50000"), sim.EXIT_REFUSED, "--memory-mib: 50000 MiB do not fit"),
        (("remap", "0", "--uncorrectable", "513"), sim.EXIT_REFUSED, "--uncorrectable: a GPU has 512 spare rows"),
    ],
)
def test_a_problem_is_told_in_the_words_of_usage(server, capsys, words, code, problem):
    assert run(server, *words) == code
    assert problem in capsys.readouterr().err


def test_a_surplus_argument_points_to_the_operations_help():
    command = [sys.executable, "-c", TESELA, "sim", "status", "extra"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        sim.EXIT_USAGE,
        "tesela sim status: unrecognized arguments: extra; see tesela sim status --help\n",
    )


def test_an_answer_that_cannot_be_written_is_one_line(server):
    command = [sys.executable, "-c", TESELA, "sim", "status", "--socket", str(server.path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        sim.EXIT_REFUSED,
        "tesela sim: cannot write the answer: No space left on device\n",
    )


def test_busy_and_idle(server):
    run(server, "busy", "0", "77", "--kind", "open")
    before = server.machine.gpu("0").processes
    run(server, "idle", "0", "77")
    assert (len(before), server.machine.gpu("0").processes) == (1, ())


def test_lose_and_reset(server):
    run(server, "lose", "0", "--absent")
    before = server.machine.gpu("0").presence
    run(server, "reset", "0")
    assert (before, server.machine.gpu("0").presence) == ("absent", "present")


@pytest.mark.parametrize(("flags", "same"), [((), False), (("--driver-only",), True)])
def test_reboot(server, flags, same):
    before = server.machine.snapshot().boot_id
    run(server, "reboot", *flags)
    assert (server.machine.snapshot().boot_id == before) is same


@pytest.mark.parametrize(("flags", "version"), [((), "580.95.05"), (("--driver", "590.44.01"), "590.44.01")])
def test_reload(server, flags, version):
    before = server.machine.snapshot()
    run(server, "reload", *flags)
    after = server.machine.snapshot()
    assert (after.driver_version, after.driver_loads - before.driver_loads) == (version, 1)


def test_a_version_that_no_driver_has_is_refused(server):
    assert run(server, "reload", "--driver", "new") == sim.EXIT_REFUSED


def test_a_refusal_is_exit_code_1_and_a_sentence(server, capsys):
    assert run(server, "lose", "9") == sim.EXIT_REFUSED
    assert "no GPU '9'" in capsys.readouterr().err


def test_no_simulator_is_exit_code_3_and_a_next_step(server, capsys):
    server.stop()
    assert run(server, "status") == sim.EXIT_UNREACHABLE
    assert "tesela sim serve" in capsys.readouterr().err


def test_without_a_socket_it_is_the_librarys():
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    header = (Path(__file__).parents[2] / "nvml-sim" / "session.c").read_text()
    assert f'"{parser.parse_args(["status"]).socket}"' in header


def test_an_unknown_code_is_a_usage_error(server, capsys):
    with pytest.raises(SystemExit) as left:
        run(server, "fail", "get_name", "OOPS")
    assert (left.value.code, "`tesela sim fail --list` has all" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("words", ["example:", "exit codes:"])
def test_every_operation_has_an_example_and_exit_codes(words):
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    (operations,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    assert [name for name, p in operations.choices.items() if words not in p.format_help()] == []


def test_the_help_of_serve_lists_models_and_options(capsys):
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", "--help"])
    words = capsys.readouterr().out.replace(",", "").split()
    assert {*list_models(), "mig", "fabric", "vgpu", "numa=N", "pcie-root=ROOT", "shift-minors"} <= set(words)


def test_no_thread_is_left_behind(server):
    run(server, "status")
    server.stop()
    assert not [t for t in threading.enumerate() if t.name == "sim-accept"]
