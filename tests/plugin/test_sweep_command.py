"""`tesela sweep` shows the report of the last sweep, to people and to machines."""

from __future__ import annotations

import json

import pytest
from tesela.cli.main import main
from tesela.core.sweep import Found, Mismatch, MismatchKind, Outcome, SweepReport
from tesela.edge.store.sweep import SweepStore

FOUND = (
    Found(
        mismatch=Mismatch(kind=MismatchKind.BARE_INSTANCE, message="GPU instance 3 stands", gpu_uuid="GPU-1"),
        outcome=Outcome.REPORTED,
    ),
    Found(
        mismatch=Mismatch(kind=MismatchKind.HALF_DONE_CLAIM, message="claim a was left", claim_uid="uid"),
        outcome=Outcome.FAILED,
        detail="in use by trainer (pid 4711)",
    ),
    Found(mismatch=Mismatch(kind=MismatchKind.MISSING_FILES, message="claim b"), outcome=Outcome.REPAIRED),
)
REPORT = SweepReport(began_s=1_800_000_000, took_s=0.25, found=FOUND, unknown=("gpu-1 does not answer",))


@pytest.fixture
def store(tmp_path):
    store = SweepStore(tmp_path / "gpu.nvidia.com")
    store.write_report(REPORT)
    return store


def show(tmp_path, capsys, *flags):
    code = main(["sweep", "--plugins-dir", str(tmp_path), *flags])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_people_read_a_line_per_mismatch(tmp_path, store, capsys):
    assert show(tmp_path, capsys) == (
        0,
        """\
sweep at 2027-01-15T08:00:00Z, 0.25 s: 2 mismatches stand, 1 repaired
  reported bare-instance: GPU instance 3 stands
  failed half-done-claim: claim a was left
    in use by trainer (pid 4711)
  repaired missing-files: claim b
  unknown: gpu-1 does not answer
""",
        "",
    )


def test_machines_read_the_counts_by_kind(tmp_path, store, capsys):
    _, out, _ = show(tmp_path, capsys, "-o", "json")

    standing = json.loads(out)["standing"]

    assert (len(standing), {kind: count for kind, count in standing.items() if count}) == (
        len(MismatchKind),
        {"bare-instance": 1, "half-done-claim": 1},
    )


def test_machines_read_each_mismatch_under_names_that_stay(tmp_path, store, capsys):
    shown = json.loads(show(tmp_path, capsys, "-o", "json")[1])

    del shown["standing"]
    assert shown == {
        "at": "2027-01-15T08:00:00Z",
        "tookSeconds": 0.25,
        "found": [
            shown_as("bare-instance", "reported", "GPU instance 3 stands", gpuUUID="GPU-1"),
            shown_as(
                "half-done-claim", "failed", "claim a was left", claimUID="uid", detail="in use by trainer (pid 4711)"
            ),
            shown_as("missing-files", "repaired", "claim b"),
        ],
        "unknown": ["gpu-1 does not answer"],
    }


def shown_as(kind, outcome, message, **known):
    """One mismatch of the document: what is not known is null."""
    absent = dict.fromkeys(("gpuUUID", "claimUID", "detail"))
    return {"kind": kind, "outcome": outcome, "message": message, **absent, **known}


def test_a_node_where_everything_fits_says_so(tmp_path, store, capsys):
    store.write_report(SweepReport(began_s=0, took_s=1.0))

    assert show(tmp_path, capsys)[1] == "sweep at 1970-01-01T00:00:00Z, 1 s: everything fits\n"


def test_before_the_first_sweep_it_says_so(tmp_path, capsys):
    code, _, said = show(tmp_path, capsys)

    assert (code, "no driver has swept here yet" in said) == (1, True)


@pytest.mark.parametrize("damage", [b"", b"noise", b'{"version": 3, "sweep": {}}'])
def test_a_damaged_report_is_said_to_be_that(tmp_path, store, capsys, damage):
    store.path.write_bytes(damage)

    code, _, said = show(tmp_path, capsys)

    assert (code, str(store.path) in said) == (1, True)
