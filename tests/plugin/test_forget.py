from __future__ import annotations

import pytest
from gpu_models import a100, h100, known, roster
from slice_world import holding
from tesela.cli.main import main
from tesela.core.errors import StateError, TryAgain
from tesela.core.roster import plan_forget
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore

GONE = known(h100(1), present=False)
ROSTER = roster(a100(0), GONE)


@pytest.mark.parametrize("named", ["gpu-1", GONE.gpu.uuid])
def test_a_gone_gpu_is_forgotten(named):
    assert [one.number for one in plan_forget(ROSTER, (), named).gpus] == [0]


def test_a_present_gpu_is_not():
    with pytest.raises(TryAgain, match="present"):
        plan_forget(ROSTER, (), "gpu-0")


def test_a_held_gpu_is_not_and_the_claim_is_named():
    with pytest.raises(TryAgain, match="default/claim-1"):
        plan_forget(ROSTER, (holding(GONE.gpu, "gpu-1"),), "gpu-1")


def test_an_unknown_gpu_is_answered_with_those_that_are_known():
    with pytest.raises(StateError, match=r"gpu-0 .*gpu-1"):
        plan_forget(ROSTER, (), "gpu-7")


@pytest.fixture
def plugins_dir(tmp_path):
    state_dir = tmp_path / "gpu.nvidia.com"
    state_dir.mkdir()
    RosterStore(state_dir).write_roster(ROSTER)
    return tmp_path


def test_the_command_writes_the_roster(plugins_dir, capsys):
    code = main(["forget", "gpu-1", "--plugins-dir", str(plugins_dir)])

    assert (code, RosterStore(plugins_dir / "gpu.nvidia.com").read_roster()) == (0, roster(a100(0)))


def test_the_command_says_why_not(plugins_dir, capsys):
    RecordStore(plugins_dir / "gpu.nvidia.com").write(holding(GONE.gpu, "gpu-1"))

    code = main(["forget", "gpu-1", "--plugins-dir", str(plugins_dir)])

    assert (code, "held by claim default/claim-1" in capsys.readouterr().err) == (1, True)


def test_an_unreadable_record_may_hold_the_gpu(plugins_dir, capsys):
    records = RecordStore(plugins_dir / "gpu.nvidia.com")
    records.write(holding(GONE.gpu, "gpu-1"))
    records.path("uid-of-claim-1").write_text("{")

    code = main(["forget", "gpu-1", "--plugins-dir", str(plugins_dir)])

    assert (code, "unreadable" in capsys.readouterr().err) == (1, True)


def test_a_node_without_a_driver(tmp_path, capsys):
    code = main(["forget", "gpu-1", "--plugins-dir", str(tmp_path)])

    assert (code, "--plugins-dir" in capsys.readouterr().err) == (1, True)
