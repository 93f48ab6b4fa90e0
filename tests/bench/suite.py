"""The figures of one node, in the order in which they are measured."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from e2e.harness.progress import step
from tesela.core.model import ClaimRef
from tesela.edge.kubelet.client import PluginClient

from bench.budgets import BUDGETS, GPUS
from bench.claims import create_claims, list_small_partitions, list_whole_gpus
from bench.control_plane import ControlPlane
from bench.figures import Figure, find_median, find_percentile
from bench.measure import (
    Times,
    following_health,
    measure_idle,
    prepare_at_once,
    prepare_in_turn,
    time_get,
    time_nvml_call,
    time_synced_write,
    time_work_after_sleep,
)
from bench.node import BenchNode

CREATE_GPU_INSTANCE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATION_MS = 250.0
SLOW_CLAIMS = 60


class Suite:
    """Measures `node`. Nodes of another size than the budgets' show what grows with a node, and are held to none."""

    def __init__(self, plane: ControlPlane, node: BenchNode, gpus: int, options: argparse.Namespace) -> None:
        self._plane = plane
        self._node = node
        self._gpus = gpus
        self._options = options

    def measure(self) -> Iterator[Figure]:
        """Every figure as soon as it is known."""
        with step(f"starts on {self._gpus} GPUs"):
            started_s = [self._start_anew() for _ in range(self._options.starts)]
        yield self._figure("start to published slices", statistics.median(started_s), "s")
        devices = self._node.list_devices()
        kinds = {"whole GPU": list_whole_gpus(devices), "partition": list_small_partitions(devices)}
        with self._node.connect() as kubelet, following_health(kubelet):
            for kind, names in kinds.items():
                prefix = f"{kind.split()[0]}-{self._gpus}"
                claims = create_claims(self._plane.kube, prefix, names, self._options.claims)
                with step(f"preparing claims of a {kind} on {self._gpus} GPUs"):
                    yield from self._measure_kind(kubelet, kind, claims)
            with step(f"preparing partitions that take {CREATION_MS:.0f} ms to create, on {self._gpus} GPUs"):
                yield from self._measure_slow_creation(kubelet, claims[:SLOW_CLAIMS])
            yield self._figure("resident after 200 claims", self._node.get_resident_mib(), "MiB")
            yield from self._measure_idle(kubelet, claims[: self._gpus])
        yield from self._measure_floor(claims[0])

    def _measure_floor(self, claim: ClaimRef) -> Iterator[Figure]:
        """What the machine takes for the single steps that no prepare can do without."""
        floors = {
            "one GET of a claim": time_get(self._plane, claim),
            "one synced file and folder": time_synced_write(self._node),
        }
        for name, times_ms in floors.items():
            yield self._figure(f"{name}, p50", statistics.median(times_ms), "ms")
        for gap_ms in (0.0, CREATION_MS):
            work_ms = statistics.median(time_work_after_sleep(gap_ms / 1000))
            yield self._figure(f"a piece of Python after {gap_ms:.0f} ms of sleep, p50", work_ms, "ms")
        call_us = statistics.median(time_nvml_call(self._node)) * 1000
        yield self._figure("one NVML call through libnvidia-ml.so.1, p50", call_us, "us")

    def _start_anew(self) -> float:
        """A first start: no slices, no roster. The driver of the last one goes on."""
        if self._node.driver is not None:
            self._node.stop_driver()
        self._node.clear()
        return self._node.start_driver()

    def _measure_kind(self, kubelet: PluginClient, kind: str, claims: Sequence[ClaimRef]) -> Iterator[Figure]:
        """The first claim on each GPU is not counted: it switches the MIG mode and asks what is asked for once."""
        rounds = range(self._options.rounds)
        prepare_in_turn(self._node, kubelet, claims[: self._gpus])
        turns = [prepare_in_turn(self._node, kubelet, claims) for _ in rounds]
        ours = [one.prepare_without_nvml_ms for one in turns]
        yield self._figure(f"prepare {kind}, p50", find_median(ours, _p50), "ms")
        yield self._figure(f"prepare {kind}, p99", find_median(ours, _p99), "ms")
        nvml_ms = find_median([one.nvml_ms for one in turns], _p50)
        yield self._figure(f"prepare {kind}, simulated NVML beside it, p50", nvml_ms, "ms")
        yield self._figure(f"unprepare {kind}, p50", find_median([one.unprepare_ms for one in turns], _p50), "ms")
        at_once = [prepare_at_once(kubelet, claims) for _ in rounds]
        yield self._figure(f"prepare {kind}, 8 at once", statistics.median(map(_rate, at_once)), "claims/s")
        p99_ms = find_median([one.prepare_ms for one in at_once], _p99)
        yield self._figure(f"prepare {kind}, 8 at once, p99", p99_ms, "ms")

    def _measure_slow_creation(self, kubelet: PluginClient, claims: Sequence[ClaimRef]) -> Iterator[Figure]:
        """Partitions whose GPU instance takes its time to create, as on hardware; that time is taken out again."""
        self._node.simulator.run("slow", CREATE_GPU_INSTANCE, str(CREATION_MS / 1000))
        try:
            times = prepare_in_turn(self._node, kubelet, claims)
        finally:
            self._node.simulator.run("release")
        ours_ms = [one - CREATION_MS for one in times.prepare_without_nvml_ms]
        for name, value_ms in (("p50", _p50(ours_ms)), ("p99", _p99(ours_ms))):
            figure = self._figure(f"prepare partition, {name}", value_ms, "ms")
            yield replace(figure, name=f"{figure.name}, slow GI creation", nvml_latency_ms=CREATION_MS)

    def _measure_idle(self, kubelet: PluginClient, held: Sequence[ClaimRef]) -> Iterator[Figure]:
        """With one partition of each GPU prepared."""
        for ref in held:
            kubelet.prepare([ref])
        with step("watching the idle driver"):
            writes, cpu = measure_idle(self._plane, self._node, self._options.idle_s)
        yield self._figure("idle, API writes", writes, "1/min")
        yield self._figure("idle, processor time", cpu, "% of one")
        kubelet.unprepare(held)

    def _figure(self, name: str, value: float, unit: str) -> Figure:
        budget = BUDGETS.get(name) if self._gpus == GPUS else None
        return Figure(
            name=f"{self._gpus} GPUs: {name}",
            value=value,
            unit=unit,
            budget=budget.limit if budget else None,
            at_least=bool(budget and budget.at_least),
        )


def _rate(times: Times) -> float:
    return 1000 * len(times.prepare_ms) / sum(times.wall_ms)


def _p50(values: Sequence[float]) -> float:
    return find_percentile(values, 50)


def _p99(values: Sequence[float]) -> float:
    return find_percentile(values, 99)
