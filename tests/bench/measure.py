"""What is measured and how: each function performs one kind of work on a node and returns raw times, in ms."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from e2e.harness.build import HarnessError
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.kubelet.client import PluginClient
from tesela.edge.store.files import write_file
from tesela.plugin.monitor import MACHINE_PERIOD_S

from bench.control_plane import ControlPlane
from bench.node import BenchNode

AT_ONCE = 8
SETTLE_S = MACHINE_PERIOD_S + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of one round over all claims. `wall_ms` is the time in which the prepares ran, without what lies between.

    In `nvml_ms` is what of each prepare the simulated NVML's process spent; only in turn, where it can be told.
    """

    prepare_ms: list[float] = field(default_factory=list)
    nvml_ms: list[float] = field(default_factory=list)
    unprepare_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)

    @property
    def prepare_without_nvml_ms(self) -> list[float]:
        """Each prepare without what the simulated NVML worked for it; all else that it waits for stays in."""
        return [prepare - nvml for prepare, nvml in zip(self.prepare_ms, self.nvml_ms, strict=True)]


def prepare_in_turn(node: BenchNode, kubelet: PluginClient, claims: Sequence[ClaimRef]) -> Times:
    """Each claim prepared and unprepared before the next."""
    times = Times()
    began_s, began_watched_s = node.get_simulator_cpu_s(), node.get_watched_s()
    for ref in claims:
        used_s = node.get_simulator_cpu_s()
        times.prepare_ms.append(_prepare(kubelet, ref))
        times.nvml_ms.append((node.get_simulator_cpu_s() - used_s) * 1000)
        times.unprepare_ms.append(_unprepare(kubelet, ref))
    # What the simulator spent on looking out for a next request kept no driver waiting: taken out evenly.
    watched_s = node.get_watched_s() - began_watched_s
    working = 1 - watched_s / (node.get_simulator_cpu_s() - began_s)
    return replace(times, nvml_ms=[working * one for one in times.nvml_ms])


def prepare_at_once(kubelet: PluginClient, claims: Sequence[ClaimRef]) -> Times:
    """Eight at a time: their calls leave together, and the next eight follow once all are unprepared."""
    times = Times()
    together = threading.Barrier(AT_ONCE)

    def prepare(ref: ClaimRef) -> float:
        together.wait(timeout=60)
        return _prepare(kubelet, ref)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(0, len(claims) - AT_ONCE + 1, AT_ONCE):
            batch = claims[first : first + AT_ONCE]
            began = time.perf_counter()
            times.prepare_ms.extend(pool.map(prepare, batch))
            times.wall_ms.append(_ms_since(began))
            times.unprepare_ms.extend(pool.map(lambda ref: _unprepare(kubelet, ref), batch))
    return times


@contextlib.contextmanager
def following_health(kubelet: PluginClient) -> Iterator[None]:
    """Reads the stream of device health meanwhile, as every kubelet does."""
    watch = kubelet.watch_health()
    reader = threading.Thread(target=deque, args=(watch,), kwargs={"maxlen": 0}, name="health")
    reader.start()
    try:
        yield
    finally:
        watch.cancel()
        reader.join()


def measure_idle(plane: ControlPlane, node: BenchNode, seconds: float) -> tuple[float, float]:
    """(API writes a minute, processor time in percent of one core) while nothing is asked of the driver.

    From when the driver has looked at the machine after the last change and published what it saw.
    """
    time.sleep(SETTLE_S)  # noqa: TID251 - idling is what is measured
    writes, cpu_s, began = plane.count_writes(), node.get_driver_cpu_s(), time.monotonic()
    time.sleep(seconds)  # noqa: TID251 - likewise
    took_s, cpu_s, after = time.monotonic() - began, node.get_driver_cpu_s() - cpu_s, plane.count_writes()
    written = sum(count - writes.get(resource, 0) for resource, count in after.items())
    return written * 60 / took_s, 100 * cpu_s / took_s


def time_get(plane: ControlPlane, claim: ClaimRef, repeats: int = 300) -> list[float]:
    """One GET of a claim by a client of the driver's kind: the floor of every prepare."""
    return [_time(lambda: plane.kube.get(RESOURCE_CLAIMS, claim.name, claim.namespace)) for _ in range(repeats)]


def time_synced_write(node: BenchNode, repeats: int = 300) -> list[float]:
    """One small file put in place by rename where the driver keeps its records, file and folder synced: likewise."""
    path = node.plugins_dir / "bench"
    data = bytes(1000)
    try:
        return [_time(lambda: write_file(path, data, mode=0o600, synced=True)) for _ in range(repeats)]
    finally:
        path.unlink(missing_ok=True)


def time_nvml_call(node: BenchNode) -> list[float]:
    """One call of NVML through libnvidia-ml.so.1, as its client sees it."""
    environment = {**os.environ, **node.simulator.client_environment, "PYTHONPATH": str(Path(__file__).parents[1])}
    measured = subprocess.run(
        [sys.executable, "-m", "bench.nvml_call"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if measured.returncode:
        raise HarnessError(f"NVML calls cannot be timed: {measured.stderr}")
    return list(map(float, json.loads(measured.stdout)))


def time_work_after_sleep(gap_s: float, repeats: int = 20) -> list[float]:
    """The same short piece of Python after `gap_s` of sleep: how much slower this machine is for who has just woken."""
    times_ms = []
    for _ in range(repeats):
        time.sleep(gap_s)  # noqa: TID251 - what a sleep does to the work after it is what is measured
        times_ms.append(_time(lambda: {str(number): number for number in range(2000)}))
    return times_ms


def _prepare(kubelet: PluginClient, ref: ClaimRef) -> float:
    began = time.perf_counter()
    answer = kubelet.prepare([ref])[ref.uid]
    took_ms = _ms_since(began)
    if isinstance(answer, Refusal):
        raise HarnessError(f"prepare was refused: {answer.message}")
    return took_ms


def _unprepare(kubelet: PluginClient, ref: ClaimRef) -> float:
    began = time.perf_counter()
    problem = kubelet.unprepare([ref])[ref.uid]
    took_ms = _ms_since(began)
    if problem is not None:
        raise HarnessError(f"unprepare failed: {problem}")
    return took_ms


def _time(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return _ms_since(began)


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000
