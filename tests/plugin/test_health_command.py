"""`tesela health`, on the driver's folder."""

from __future__ import annotations

import json

import pytest
from gpu_models import a100, known, roster
from health_world import GPU, OTHER, ROSTER, signals_of, tell
from tesela.cli.main import main
from tesela.core.health.model import ALL_HEALTHY
from tesela.core.health.observations import Reading, XidSeen
from tesela.core.model import Placement
from tesela.edge.store.health import HealthStore
from tesela.edge.store.roster import RosterStore

ILL = tell(
    XidSeen(gpu_uuid=GPU, xid=13, count=3),
    XidSeen(gpu_uuid=GPU, xid=48, placement=Placement(start=2, size=2)),
    Reading(gpu_uuid=GPU, remap_failure=True),
)
UNHARMED = f"gpu-1 {OTHER} NVIDIA H100 80GB HBM3: healthy\n"


@pytest.fixture
def state_dir(tmp_path):
    folder = tmp_path / "gpu.nvidia.com"
    folder.mkdir()
    RosterStore(folder).write_roster(ROSTER)
    HealthStore(folder).write_health(ILL)
    return folder


@pytest.fixture
def run(state_dir, capsys):
    def run(*arguments):
        code = main(["health", *arguments, "--plugins-dir", str(state_dir.parent)])
        return code, *capsys.readouterr()

    return run


def test_the_list_shows_findings_the_worst_first_with_their_taints(run):
    assert run("list") == (
        0,
        f"gpu-0 {GPU} NVIDIA A100-SXM4-40GB: unhealthy\n"
        "  unhealthy gpu-0 remap-failure since 1970-01-12T13:46:40Z: a bad memory row could not be replaced: have the "
        "board replaced\n"
        "    taint gpu.nvidia.com/remap=failure:NoSchedule, until somebody runs tesela health clear\n"
        "  unhealthy gpu-0 slices 2-3 xid-48 since 1970-01-12T13:46:40Z: Xid 48, double-bit ECC error: drain the GPU "
        "and reset it\n"
        "    taint gpu.nvidia.com/xid=48:NoSchedule, until the GPU is reset\n"
        "  counted gpu-0 xid-13 since 1970-01-12T13:46:40Z (3 times, last 1970-01-12T13:46:40Z): Xid 13, graphics "
        "engine exception: restart the application if it failed\n" + UNHARMED,
        "",
    )


def test_one_gpu_can_be_asked_for(run):
    assert run("list", "gpu-1") == (0, UNHARMED, "")


def test_the_list_for_machines_has_the_same(run):
    answer = json.loads(run("list", "-o", "json")[1])

    assert [(gpu["name"], gpu["state"], len(gpu["findings"])) for gpu in answer["gpus"]] == [
        ("gpu-0", "unhealthy", 3),
        ("gpu-1", "healthy", 0),
    ]


def test_machines_read_where_a_finding_is(run):
    found = json.loads(run("list", "gpu-0", "-o", "json")[1])["gpus"][0]["findings"]

    assert {one["signal"]: one["placement"] for one in found} == {
        "remap-failure": None,
        "xid-48": {"start": 2, "size": 2},
        "xid-13": None,
    }


def test_a_gpu_that_is_away_is_gone(run, state_dir):
    RosterStore(state_dir).write_roster(roster(known(a100(0), present=False)))

    assert run("list")[1].startswith(f"gpu-0 {GPU} NVIDIA A100-SXM4-40GB: gone\n")


def test_clear_takes_everything_back(run, state_dir):
    code, _, _ = run("clear", "gpu-0", "--reason", "board replaced")

    assert (code, HealthStore(state_dir).read_health().findings) == (0, ())


def test_clear_takes_one_signal_back(run, state_dir):
    run("clear", GPU, "--signal", "xid-48", "--reason", "reset by hand")

    assert signals_of(HealthStore(state_dir).read_health()) == ["remap-failure", "xid-13"]


def test_clear_says_what_will_come_back(run):
    _, out, _ = run("clear", "gpu-0", "--signal", "remap-failure", "--reason", "tested")

    assert out == (
        "cleared gpu-0 remap-failure: a bad memory row could not be replaced: have the board replaced; it comes back "
        "while NVML or the driver still finds it so\nthe driver takes note within seconds\n"
    )


def test_what_was_cleared_is_listed_with_its_reason(run):
    run("clear", "gpu-0", "--signal", "xid-48", "--reason", "reset\nby hand")

    assert ": reset by hand\n" in run("list")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clear", "gpu-7", "--reason", "x"), "knows no GPU 'gpu-7'; it knows: gpu-0"),
        (("clear", "gpu-1", "--reason", "x"), f"no finding stands on {OTHER}"),
        (("clear", "gpu-0", "--signal", "xid-1", "--reason", "x"), "these do: remap-failure, xid-13, xid-48"),
    ],
)
def test_clear_says_why_not(run, arguments, message):
    code, _, error = run(*arguments)

    assert (code, message in error) == (1, True)


def test_clear_asks_for_a_reason(run):
    with pytest.raises(SystemExit) as ended:
        run("clear", "gpu-0")

    assert ended.value.code == 2


def test_a_reason_says_something(run):
    with pytest.raises(SystemExit) as ended:
        run("clear", "gpu-0", "--reason", "  ")

    assert ended.value.code == 2


def test_a_damaged_file_is_told_and_left(run, state_dir):
    HealthStore(state_dir).path.write_bytes(b"{")

    code, _, error = run("clear", "gpu-0", "--reason", "x")

    assert (code, "goes on from its copy" in error, HealthStore(state_dir).path.read_bytes()) == (1, True, b"{")


def test_a_folder_of_no_driver_is_named(tmp_path, capsys):
    code = main(["health", "list", "--plugins-dir", str(tmp_path)])

    assert (code, "no driver ever ran here" in capsys.readouterr().err) == (1, True)


def test_a_healthy_node_is_listed(run, state_dir):
    HealthStore(state_dir).write_health(ALL_HEALTHY)

    assert run("list")[1] == f"gpu-0 {GPU} NVIDIA A100-SXM4-40GB: healthy\n{UNHARMED}"
