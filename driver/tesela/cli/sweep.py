"""`tesela sweep`: what the driver's last sweep of this node found, repaired and left. It reads a file and asks nobody.

So it answers also while NVML hangs or the API is away. Run it on the node, as a user who may read the driver's folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from tesela.cli.node_arguments import add_output, add_plugins_dir, get_state_dir
from tesela.core.errors import StateError
from tesela.core.sweep import Found, Outcome, SweepReport
from tesela.edge.kube.times import render_time
from tesela.edge.store.sweep import SweepStore

_EPILOG: Final = """\
The driver sweeps at its start and every five minutes: it compares records, CDI and metadata files, live GPU instances,
MIG modes, time slices and the API's claims. What is its own it repairs; what others made it reports and leaves.

exit codes:
  0    done, whatever the sweep found
  1    no sweep yet, or its report cannot be read: one line on stderr says why
  2    wrong usage

examples:
  kubectl exec -n NAMESPACE POD -- tesela sweep
  tesela sweep -o json | jq '.standing'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the output format and where the driver keeps its state."""
    parser.epilog = _EPILOG
    add_output(parser)
    add_plugins_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Shows the report. StateError says why there is none."""
    store = SweepStore(get_state_dir(args))
    report = store.read_report()
    if report is None:
        raise StateError(
            f"{store.path} does not exist: no driver has swept here yet, or --plugins-dir is another folder; a driver "
            "sweeps once it has recovered its claims"
        )
    print(json.dumps(render_report(report), indent=2) if args.output == "json" else "\n".join(_list_lines(report)))
    return 0


def render_report(report: SweepReport) -> dict[str, Any]:
    """The report for machines: `standing` counts by kind what stands after the sweep, each kind among them."""
    return {
        "at": render_time(report.began_s),
        "tookSeconds": report.took_s,
        "standing": {kind.value: count for kind, count in report.count_standing().items()},
        "found": [_render_found(one) for one in report.found],
        "unknown": list(report.unknown),
    }


def _render_found(one: Found) -> dict[str, Any]:
    return {
        "kind": one.mismatch.kind.value,
        "outcome": one.outcome.value,
        "gpuUUID": one.mismatch.gpu_uuid or None,
        "claimUID": one.mismatch.claim_uid or None,
        "message": one.mismatch.message,
        "detail": one.detail or None,
    }


def _list_lines(report: SweepReport) -> Iterator[str]:
    standing = sum(report.count_standing().values())
    repaired = sum(one.outcome is Outcome.REPAIRED for one in report.found)
    stands = "1 mismatch stands" if standing == 1 else f"{standing} mismatches stand"
    said = f"{stands}, {repaired} repaired" if report.found else "everything fits"
    yield f"sweep at {render_time(report.began_s)}, {report.took_s:g} s: {said}"
    for one in report.found:
        yield f"  {one.outcome} {one.mismatch.kind}: {one.mismatch.message}"
        if one.detail:
            yield f"    {one.detail}"
    for sentence in report.unknown:
        yield f"  unknown: {sentence}"
