"""`python -m bench` with `tests` on the path: brings the control plane up, measures, prints, writes bench.json."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.harness import build
from tesela.core.errors import TeselaError

from bench.container import measure_container
from bench.control_plane import ControlPlane
from bench.figures import Figure, render_header, render_line, write_figures
from bench.node import BenchNode
from bench.suite import Suite

MODEL = "h100-80gb"  # MIG on demand: whole GPUs and all their partitions at once, the largest pool there is


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 once everything is measured, whatever the figures are."""
    options = _parse(argv)
    if os.geteuid() != 0:
        return _fail("the API server runs in namespaces of its own: run it as root")
    if options.ahead:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # inherited by all that is started
    try:
        binaries = build.prepare()
        figures = [] if options.only == "image" else _measure_nodes(binaries, options)
        if options.only != "nodes":
            for figure in measure_container(binaries, MODEL, options):
                print(render_line(figure), flush=True)
                figures.append(figure)
    except (build.HarnessError, TeselaError) as error:
        return _fail(str(error))
    write_figures(options.output, figures)
    missed = sum(figure.within is False for figure in figures)
    print(f"{len(figures)} figures in {options.output}, {missed} budgets missed, load now {_get_load()}", flush=True)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 16], help="sizes of nodes (default 8 16)")
    parser.add_argument("--claims", type=int, default=200, help="claims of each kind in a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; a figure is their median (%(default)s)")
    parser.add_argument("--starts", type=int, default=5, help="starts; the figure is their median (%(default)s)")
    parser.add_argument("--idle-s", type=float, default=60.0, help="how long an idle driver is watched (%(default)s)")
    parser.add_argument("--only", choices=["nodes", "image"], help="half of it: the driver's work, or its container")
    parser.add_argument("--ahead", action="store_true", help="real-time priority, on a machine with other work")
    parser.add_argument("--output", type=Path, default=Path("bench.json"), help="(%(default)s)")
    return parser.parse_args(argv)


def _measure_nodes(binaries: Path, options: argparse.Namespace) -> list[Figure]:
    plane = ControlPlane(binaries)
    plane.up()
    try:
        return _measure(plane, options)
    finally:
        plane.down()


def _measure(plane: ControlPlane, options: argparse.Namespace) -> list[Figure]:
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load {_get_load()}; NVML is simulated, in a "
        f"process of its own on the same cores; {options.claims} claims a round, medians of {options.rounds} rounds",
        flush=True,
    )
    print(render_header(), flush=True)
    identity = plane.create_identity("plugin")
    figures: list[Figure] = []
    for gpus in options.gpus:
        node = BenchNode(plane, identity, f"{MODEL}*{gpus}")
        try:
            for figure in Suite(plane, node, gpus, options).measure():
                print(render_line(figure), flush=True)
                figures.append(figure)
        finally:
            node.close()
    return figures


def _get_load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _fail(text: str) -> int:
    print(f"bench: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
