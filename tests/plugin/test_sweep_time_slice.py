"""Time slices: read through the host's nvidia-smi, set again where they differ from what a claim was given."""

from __future__ import annotations

import pytest
from sweeping import Sweeps
from tesela.core.sweep import MismatchKind, Outcome
from tesela.edge.host.nvidia_smi import NvidiaSmi

TABLE = """\
+-------------------------------------+
| GPU compute policies:               |
| GPU      Name             Value     |
|=====================================|
| 0        timeslice        {word}    |
+-------------------------------------+
"""
SMI = """\
#!/bin/sh
echo "$@" >> {folder}/calls
case "$*" in
  *--set-timeslice*) echo "$5" > {folder}/number;;
  *-l) set -- Default Short Medium Long; shift "$(cat {folder}/number 2>/dev/null || echo 0)"
       echo "| 0   timeslice   $1   |";;
esac
"""
LONG = {
    "opaque": {
        "driver": "gpu.nvidia.com",
        "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
        },
    },
    "source": "FromClaim",
}


def install(world, script):
    program = world.root / "driver/usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)


@pytest.fixture
def number(world):
    """The file that has the interval's number in force, of a stand-in nvidia-smi."""
    install(world, SMI.format(folder=world.root))
    world.serve(world.claim("a", "gpu-1", configs=(LONG,)))
    return world.root / "number"


def test_one_that_is_as_the_claim_was_given_is_no_mismatch(world, number):
    assert Sweeps(world).sweep().found == ()


def test_one_that_differs_is_set_again(world, number):
    number.write_text("0\n")

    found = Sweeps(world).find(MismatchKind.TIME_SLICE)

    assert (found.outcome, number.read_text()) == (Outcome.REPAIRED, "3\n")


def test_one_that_does_not_take_is_reported_as_failed(world, number):
    install(world, SMI.format(folder=world.root).replace("> {}".format(world.root / "number"), "> /dev/null"))
    number.write_text("0\n")

    assert Sweeps(world).find(MismatchKind.TIME_SLICE).outcome is Outcome.FAILED


def test_one_that_cannot_be_read_is_said_to_be_unknown(world, number):
    install(world, "#!/bin/sh\nexit 1\n")

    report = Sweeps(world).sweep()

    assert (report.found, "time slice of gpu-1" in report.unknown[0]) == ((), True)


def test_nobody_is_asked_where_no_claim_set_one(world):
    install(world, SMI.format(folder=world.root))
    world.serve(world.claim("a", "gpu-1"))

    Sweeps(world).sweep()

    assert not (world.root / "calls").exists()


@pytest.mark.parametrize("word", ["Default", "Short", "Medium", "Long"])
def test_the_word_in_the_program_s_table_counts(tmp_path, word):
    path = tmp_path / "smi"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{TABLE.format(word=word)}END\n")
    path.chmod(0o755)

    assert NvidiaSmi(path=path).get_time_slice("GPU-1") == word


@pytest.mark.parametrize("said", ["", "GPU 0: timeslice 3", "Default Long"])
def test_an_answer_without_one_word_is_unknown(tmp_path, said):
    path = tmp_path / "smi"
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)

    assert NvidiaSmi(path=path).get_time_slice("GPU-1") is None
