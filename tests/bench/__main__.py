"""`python -m bench` with `tests` on the path: brings the control plane up, measures, prints, writes bench.json."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.harness import build
from e2e.harness.progress import step
from tesela.core.model import ClaimRef
from tesela.edge.kubelet.client import PluginClient

from bench.claims import create_claims, list_small_partitions, list_whole_gpus
from bench.control_plane import ControlPlane
from bench.figures import Figure, find_median, find_percentile, render_header, render_line, write_figures
from bench.measure import AT_ONCE, Times, measure_idle, prepare_at_once, prepare_in_turn, time_nvml_call
from bench.node import BenchNode

MODEL = "h100-80gb"  # MIG on demand: whole GPUs and all partitions at once, the largest pool there is


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 once everything is measured, whatever the figures are."""
    args = _parse(argv)
    if os.geteuid() != 0:
        return _fail("the API server runs in namespaces of its own: run it as root")
    try:
        plane = ControlPlane(build.prepare())
        plane.up()
        try:
            figures = _measure(plane, args)
        finally:
            plane.down()
    except build.HarnessError as error:
        return _fail(str(error))
    write_figures(args.output, figures)
    missed = sum(figure.within is False for figure in figures)
    print(f"{len(figures)} figures in {args.output}, {missed} budgets missed", flush=True)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--claims", type=int, default=200, help="claims of each kind in a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; a figure is their median (%(default)s)")
    parser.add_argument("--starts", type=int, default=5, help="starts; the figure is their median (%(default)s)")
    parser.add_argument("--idle-s", type=float, default=60.0, help="how long an idle driver is watched (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("bench.json"), help="(%(default)s)")
    return parser.parse_args(argv)


def _measure(plane: ControlPlane, args: argparse.Namespace) -> list[Figure]:
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load {load}; GPUs are simulated in a process of "
        f"their own on the same cores; {args.claims} claims a round, medians of {args.rounds} rounds",
        flush=True,
    )
    print(render_header(), flush=True)
    identity = plane.create_identity("plugin")
    figures: list[Figure] = []
    for gpus in (8, 16):
        node = BenchNode(plane, identity, f"{MODEL}*{gpus}")
        try:
            for figure in _measure_node(plane, node, gpus, args):
                print(render_line(figure), flush=True)
                figures.append(figure)
        finally:
            node.close()
    return figures


def _measure_node(plane: ControlPlane, node: BenchNode, gpus: int, args: argparse.Namespace) -> list[Figure]:
    """A node of 8 GPUs is held to the budgets; one of 16 shows what grows with the node."""
    budgets = gpus == AT_ONCE
    with step(f"starts on {gpus} GPUs"):
        started_s = [_start_anew(node) for _ in range(args.starts)]
    figures = [_figure(gpus, "start to published slices", statistics.median(started_s), "s", 1.2 if budgets else None)]
    devices = node.list_devices()
    kinds = {"whole GPU": list_whole_gpus(devices), "partition": list_small_partitions(devices)}
    with node.connect() as kubelet:
        for kind, names in kinds.items():
            with step(f"creating claims of a {kind}"):
                created = create_claims(plane.kube, f"{kind.split()[0]}-{gpus}", names, args.claims)
            claims = [ref for ref, _ in created]
            with step(f"preparing a {kind} on {gpus} GPUs"):
                figures += _measure_kind(kubelet, kind, claims, gpus, args.rounds)
            if kind == "whole GPU":
                figures.append(
                    _figure(
                        gpus, "resident after whole GPUs", node.get_resident_mib(), "MiB", 96.0 if budgets else None
                    )
                )
        figures.append(
            _figure(gpus, "resident after partitions", node.get_resident_mib(), "MiB", 96.0 if budgets else None)
        )
        held = claims[:gpus]
        for ref in held:
            kubelet.prepare([ref])
        with step("watching the idle driver", quiet_s=0):
            writes, cpu = measure_idle(plane, node, args.idle_s)
        kubelet.unprepare(held)
    figures.append(_figure(gpus, "idle, API writes", writes, "1/min", 1.0 if budgets else None))
    figures.append(_figure(gpus, "idle, processor time", cpu, "% of 1", 0.5 if budgets else None))
    if budgets:
        figures.append(
            _figure(gpus, "one NVML call, simulator's socket", statistics.median(time_nvml_call(node)), "ms")
        )
    return figures


def _measure_kind(kubelet: PluginClient, kind: str, claims: Sequence[ClaimRef], gpus: int, rounds: int) -> list[Figure]:
    """The first claims on each GPU are not counted: they switch its MIG mode and fill what is asked for once."""
    budgets = gpus == AT_ONCE
    p50_ms, p99_ms = (6.0, 20.0) if kind == "whole GPU" else (9.0, 25.0)
    prepare_in_turn(kubelet, claims[:gpus])
    turns = [prepare_in_turn(kubelet, claims) for _ in range(rounds)]
    at_once = [prepare_at_once(kubelet, claims) for _ in range(rounds)]
    prepares = [one.prepare_ms for one in turns]
    return [
        _figure(gpus, f"prepare {kind}, p50", find_median(prepares, _p50), "ms", p50_ms if budgets else None),
        _figure(gpus, f"prepare {kind}, p99", find_median(prepares, _p99), "ms", p99_ms if budgets else None),
        _figure(gpus, f"unprepare {kind}, p50", find_median([one.unprepare_ms for one in turns], _p50), "ms"),
        Figure(
            name=f"{gpus} GPUs: prepare {kind}, 8 at once",
            value=statistics.median(_rate(one) for one in at_once),
            unit="claims/s",
            budget=130.0 if budgets else None,
            at_least=True,
        ),
        _figure(
            gpus,
            f"prepare {kind}, 8 at once, p99",
            find_median([one.prepare_ms for one in at_once], _p99),
            "ms",
            120.0 if budgets else None,
        ),
    ]


def _start_anew(node: BenchNode) -> float:
    """A first start: no slices, no roster. The driver of the last one goes on."""
    if hasattr(node, "driver"):
        node.stop_driver()
    node.clear()
    return node.start_driver()


def _figure(gpus: int, name: str, value: float, unit: str, budget: float | None = None) -> Figure:
    return Figure(name=f"{gpus} GPUs: {name}", value=value, unit=unit, budget=budget)


def _rate(times: Times) -> float:
    return 1000 * len(times.prepare_ms) / sum(times.wall_ms)


def _p50(values: Sequence[float]) -> float:
    return find_percentile(values, 50)


def _p99(values: Sequence[float]) -> float:
    return find_percentile(values, 99)


def _fail(text: str) -> int:
    print(f"bench: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
