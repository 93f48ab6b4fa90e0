"""`tesela sim`: health as people act it out, processes that exist, and the map that follows."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from contract.sim_command import TESELA, run, served
from polling import until
from rich.console import Console
from tesela.cli import sim
from tesela.cli.sim_status import list_facts
from tesela.cli.sim_watch import list_changes, render_watch
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.admin import perform_admin, render_state
from tesela.edge.simulator.events import Registration
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.real_process import RealProcess

SOON_S = 30.0


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "sim.sock", "a100-40gb:mig,h100-80gb") as server:
        yield server


@pytest.fixture
def sleeper():
    """A process that exists."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait(timeout=10)


def start(server, *words: str, **streams) -> subprocess.Popen:
    command = [sys.executable, "-c", TESELA, "sim", *words, "--socket", str(server.path)]
    return subprocess.Popen(command, text=True, **streams)


# Health


def test_an_xid_is_reported(server):
    registration = Registration(
        gpu_uuid=server.machine.gpu("0").uuid, mask=codes.EVENT_XID, since=server.machine.events.cursor
    )
    run(server, "xid", "0", "94")
    event = server.machine.events.wait([registration], SOON_S)
    assert (event.data, event.gi_id, event.ci_id) == (94, None, None)


def test_ecc_errors_and_the_mode(server):
    run(server, "ecc", "1", "--corrected", "3", "--uncorrected", "1", "--volatile-only", "--mode", "off")
    health = server.machine.gpu("1").health
    assert (health.corrected_volatile, health.uncorrected_aggregate, health.ecc_pending) == (3, 0, 0)


def test_an_ecc_command_that_is_refused_changes_nothing(server):
    run(server, "ecc", "1", "--mode", "off")
    server.machine.reset("1")
    refused = run(server, "ecc", "1", "--mode", "on", "--corrected", "1")
    assert (refused, server.machine.gpu("1").health.ecc_pending) == (sim.EXIT_REFUSED, 0)


def test_remapped_rows(server):
    run(server, "remap", "1", "--correctable", "2", "--uncorrectable", "1", "--pending", "--failure")
    health = server.machine.gpu("1").health
    rows = (health.remapped_correctable, health.remapped_uncorrectable, health.remap_pending, health.remap_failure)
    assert rows == (2, 1, True, True)


@pytest.mark.parametrize("action", ["1", "GPU_RESET", "gpu-reset", "nvml_gpu_recovery_action_gpu_reset"])
def test_a_recovery_action_by_name_or_number(server, action):
    run(server, "recovery-action", "1", action)
    assert server.machine.gpu("1").health.recovery_action == "GPU_RESET"


def test_an_unknown_recovery_action_is_a_usage_error(server, capsys):
    with pytest.raises(SystemExit) as left:
        run(server, "recovery-action", "1", "PRAY")
    assert (left.value.code, "known are 0 NONE" in capsys.readouterr().err) == (2, True)


def test_status_tells_the_health(server, capsys):
    run(server, "remap", "0", "--uncorrectable", "1", "--pending")
    run(server, "status")
    assert (
        "  health ECC on; corrected 0 now, 0 ever; uncorrected 0 now, 0 ever; "
        "rows remapped: 0 correctable, 1 uncorrectable, pending; recovery action NONE\n"
    ) in capsys.readouterr().out


def test_status_says_nothing_of_a_gpu_that_is_as_new(server, capsys):
    run(server, "status")
    assert "health" not in capsys.readouterr().out


def test_status_tells_what_a_process_in_an_instance_needs(server, sleeper, capsys):
    nvml = SimulatedNvml(server.machine)
    nvml.init()
    made = nvml.create_gpu_instance(nvml.get_uuid(0), 19, Placement(start=6, size=1))
    device = nvml.create_compute_instance(nvml.get_uuid(0), made.gi_id, 0)
    run(server, "busy", "0", str(sleeper.pid), "--real", "--gi", str(made.gi_id), "--ci", "0")
    run(server, "status")
    name = Path(f"/proc/{sleeper.pid}/comm").read_text().strip()
    lines = capsys.readouterr().out.splitlines()
    assert f"  gi 13 1g.5gb at 6:1 ci 0 {device.mig_uuid}" in lines
    assert f"  process {sleeper.pid} {name} (compute, real) gi 13 ci 0" in lines


def test_status_for_programs_tells_the_health(server, capsys):
    run(server, "ecc", "0", "--uncorrected", "2")
    run(server, "status", "-o", "json")
    assert json.loads(capsys.readouterr().out)["gpus"][0]["health"]["uncorrected_aggregate"] == 2


# Processes that exist


def test_a_real_process_leaves_the_gpu_when_it_ends(server, sleeper):
    run(server, "busy", "0", str(sleeper.pid), "--real", "--memory-mib", "64")
    held = [(p.pid, p.memory_bytes) for p in server.machine.gpu("0").processes]
    sleeper.kill()
    assert until(lambda: not server.machine.gpu("0").processes, SOON_S)
    assert held == [(sleeper.pid, 64 << 20)]


def test_a_real_process_can_be_taken_off_while_it_lives(server, sleeper):
    run(server, "busy", "0", str(sleeper.pid), "--real")
    run(server, "idle", "0", str(sleeper.pid))
    name = f"sim-pid-{sleeper.pid}"
    assert until(lambda: all(thread.name != name for thread in threading.enumerate()), SOON_S)


def test_a_process_that_does_not_exist_is_refused(server, capsys):
    assert run(server, "busy", "0", "2147483647", "--real") == sim.EXIT_REFUSED
    assert "no process 2147483647 lives" in capsys.readouterr().err


@pytest.mark.parametrize("use_pidfd", [True, False])
def test_the_end_of_a_process_is_noticed(sleeper, use_pidfd):
    real = RealProcess.find(sleeper.pid, use_pidfd=use_pidfd)
    alive = real.wait(0)
    sleeper.kill()  # and it stays a zombie, which is no life
    assert (alive, real.wait(SOON_S)) == (False, True)
    real.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_itself_holds_the_gpu_until_it_is_told_to_end(server, number):
    process = start(server, "busy", "0", stdout=subprocess.PIPE)
    line = process.stdout.readline()
    held = [p.pid for p in server.machine.gpu("0").processes]
    process.send_signal(number)
    code = process.wait(timeout=SOON_S)
    process.stdout.close()
    left = server.machine.gpu("0").processes
    assert (f"process {process.pid} holds GPU 0" in line, held, code, left) == (True, [process.pid], 0, ())


def test_a_gpu_is_freed_when_the_command_is_killed(server):
    process = start(server, "busy", "0", stdout=subprocess.PIPE)
    process.stdout.readline()
    process.kill()
    process.wait(timeout=SOON_S)
    process.stdout.close()
    assert until(lambda: not server.machine.gpu("0").processes, SOON_S)


def test_the_command_ends_with_its_simulator(server):
    process = start(server, "busy", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    server.stop()
    _, problem = process.communicate(timeout=SOON_S)
    assert (process.returncode, "GPU 0 is held no longer: " in problem) == (sim.EXIT_UNREACHABLE, True)


def test_the_command_ends_when_somebody_frees_the_gpu(server):
    process = start(server, "busy", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    run(server, "idle", "0", str(process.pid))
    _, problem = process.communicate(timeout=SOON_S)
    assert (process.returncode, "somebody has freed it" in problem) == (0, True)


def test_for_programs_the_command_says_json(server):
    process = start(server, "busy", "0", "-o", "json", stdout=subprocess.PIPE)
    said = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SOON_S)
    assert said == {"ok": True, "gpu": "0", "pid": process.pid}


def test_real_without_a_pid_is_a_usage_error(server, capsys):
    assert (run(server, "busy", "0", "--real"), "needs a PID" in capsys.readouterr().err) == (sim.EXIT_USAGE, True)


# The map


def test_each_change_is_a_line_where_no_terminal_is(server):
    process = start(server, "status", "--watch", stdout=subprocess.PIPE)
    first = [process.stdout.readline() for _ in range(5)]
    run(server, "lose", "1")
    change = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=SOON_S)
    assert (len(first), change.rstrip().endswith("LOST"), rest, process.returncode) == (5, True, "", 0)


def test_a_terminal_shows_the_map(server):
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = start(server, "status", "--watch", stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = b""
    while b"memory slices are free" not in seen:
        seen += os.read(master, 65536)
    process.send_signal(signal.SIGINT)
    code = _drain_until_end(process, master)
    assert (b"gpu-0" in seen, code) == (True, 0)


def _drain_until_end(process, master: int) -> int:
    def drain() -> None:
        try:
            while os.read(master, 65536):
                pass
        except OSError:
            return  # the other end is closed: how a terminal ends

    reader = threading.Thread(target=drain)
    reader.start()
    code = process.wait(timeout=SOON_S)
    reader.join(SOON_S)
    os.close(master)
    return code


def test_a_watch_ends_with_its_simulator(server):
    process = start(server, "status", "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    server.stop()
    _, problem = process.communicate(timeout=SOON_S)
    assert (process.returncode, "tesela sim serve" in problem) == (sim.EXIT_UNREACHABLE, True)


def test_a_watch_ends_with_its_reader(server):
    process = start(server, "status", "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    problem = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=SOON_S), problem) == (1, "")


def test_a_watch_is_not_for_programs(server, capsys):
    assert run(server, "status", "--watch", "-o", "json") == sim.EXIT_USAGE


def look_at(machine) -> dict:
    return json.loads(json.dumps(render_state(machine.snapshot()))) | {"misbehaviours": []}


def test_nothing_changed_is_no_line():
    facts = list_facts(look_at(build_machine("h100-80gb:mig*2")))
    assert list(list_changes(facts, facts)) == []


def test_what_comes_and_what_goes_are_lines():
    machine = build_machine("a100-40gb:mig")
    nvml = SimulatedNvml(machine)
    nvml.init()
    gpu = nvml.get_uuid(0)
    empty = list_facts(look_at(machine))
    placement = nvml.get_gpu_instance_possible_placements(gpu, 9)[0]
    nvml.create_gpu_instance(gpu, 9, placement)
    full = list_facts(look_at(machine))
    assert [*list_changes(empty, full), *list_changes(full, empty)] == [
        f"GPU 0 {gpu} gi 1: 3g.20gb at 0:4 no compute instance",
        f"GPU 0 {gpu} gi 1: gone",
    ]


def test_the_map_names_who_uses_an_instance():
    machine = build_machine("a100-40gb:mig")
    nvml = SimulatedNvml(machine)
    nvml.init()
    gpu = nvml.get_uuid(0)
    made = nvml.create_gpu_instance(gpu, 9, nvml.get_gpu_instance_possible_placements(gpu, 9)[0])
    perform_admin(machine, json.dumps({"op": "busy", "gpu": gpu, "pid": 77, "gi": made.gi_id, "name": "trainer"}))
    console = Console(file=io.StringIO(), width=100)
    console.print(render_watch(look_at(machine), console))
    assert "trainer 77" in console.file.getvalue()
