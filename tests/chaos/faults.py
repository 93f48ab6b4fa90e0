"""The faults of a chaos run, each by its name: what it does to the node, and what ends it.

A fault ends by itself after a while; `calm` ends all of them at once. `epoch_of` counts, per GPU, how often its
partitions went by something that no driver can undo: a promise from before is void then.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tesela.core.errors import DocumentError, NvmlError, TryAgain
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang, Latency
from tesela.edge.simulator.nvml import SimulatedNvml

from chaos.figures import Figures
from chaos.node import NVML_TIMEOUT_S, ChaosNode, list_files

FAILING: Final = (
    *("create_gpu_instance", "create_compute_instance", "destroy_gpu_instance", "destroy_compute_instance"),
    *("get_gpu_instances", "get_compute_instances", "get_minor_number", "get_mig_mode", "set_mig_mode", "get_name"),
)
CODES: Final = (codes.UNKNOWN, codes.IN_USE, codes.TIMEOUT, codes.INSUFFICIENT_RESOURCES, codes.NO_PERMISSION)
XIDS: Final = (13, 31, 43, 45, 48, 63, 74, 79, 92, 94, 95, 109, 119)
YEAR_S: Final = 365 * 86400
STORM: Final = 1000


class Faults:
    """Injects; `inject` picks a kind and tells which."""

    def __init__(self, node: ChaosNode, figures: Figures) -> None:
        self._node = node
        self._figures = figures
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._ends: dict[int, Callable[[], None]] = {}
        self._epochs: Counter[str] = Counter()
        self.damaged: set[str] = set()
        """UIDs of claims that had a file damaged: nobody promised that such a file is whole before the next call."""
        self._kinds: dict[str, Callable[[random.Random], None]] = {
            "NVML error": self._fail_nvml,
            "NVML slow": self._slow_nvml,
            "NVML hangs": self._hang_nvml,
            "GPU lost and reset": self._lose_gpu,
            "GPU reset": self._reset_gpu,
            "partition destroyed by hand": self._destroy_by_hand,
            "Xid": self._raise_xid,
            "Xid storm": self._raise_storm,
            "API error": lambda choice: self._node.api.fail(choice.randint(1, 4)),
            "API answer lost": lambda choice: self._node.api.lose_answers(choice.randint(1, 2)),
            "API away": lambda choice: self._node.api.go_away(choice.uniform(1, 8)),
            "kill -9": lambda _choice: self._exchange(self._node.kill_driver),
            "roster damaged": lambda choice: self._exchange(
                lambda: self._node.restart_driver(lambda: self._damage_roster(choice))
            ),
            "two drivers": lambda _choice: self._exchange(self._node.overlap_drivers),
            "disk full": self._fill_disk,
            "record damaged": lambda choice: self._damage_one("claims", choice),
            "CDI file damaged": lambda choice: self._damage_one("../../cdi", choice),
            "metadata damaged": lambda choice: self._damage_one("dra-device-metadata", choice),
            "CDI folder emptied": self._empty_cdi_folder,
            "clock jumped": self._jump_clock,
        }

    def list_kinds(self) -> tuple[str, ...]:
        """Every kind there is."""
        return tuple(self._kinds)

    def inject(self, choice: random.Random, kind: str | None = None) -> None:
        """One fault, of `kind` or of any."""
        kind = kind or choice.choice(self.list_kinds())
        self._figures.meet(kind)
        self._kinds[kind](choice)

    def epoch_of(self, gpu_uuid: str) -> int:
        """How often what lived on this GPU was taken from outside."""
        with self._guard:
            return self._epochs[gpu_uuid]

    def calm(self) -> None:
        """Ends every fault."""
        with self._guard:
            ends, self._ends = list(self._ends.values()), {}
        for end in ends:
            end()
        self._node.api.heal()
        self._node.machine.release()
        with self._node.exchanging:
            self._node.driver.empty_disk()

    # NVML and the machine

    def _gpu(self, choice: random.Random) -> str:
        return choice.choice([gpu.uuid for gpu in self._node.machine.snapshot().gpus])

    def _fail_nvml(self, choice: random.Random) -> None:
        self._node.machine.inject(
            Fault(
                function=choice.choice(FAILING),
                code=choice.choice(CODES),
                gpu=self._gpu(choice),
                times=choice.randint(1, 3),
                when=choice.choice(["before", "after"]),
            )
        )

    def _slow_nvml(self, choice: random.Random) -> None:
        self._node.machine.inject(
            Latency(function="*", gpu=self._gpu(choice), seconds=choice.uniform(0.05, 0.5), times=choice.randint(1, 20))
        )

    def _hang_nvml(self, choice: random.Random) -> None:
        self._node.machine.inject(Hang(function=choice.choice(FAILING), gpu=self._gpu(choice)))
        self._end_after(NVML_TIMEOUT_S + choice.uniform(0, 2), self._node.machine.release)

    def _lose_gpu(self, choice: random.Random) -> None:
        uuid = self._gpu(choice)
        self._void(uuid)
        self._node.machine.lose(uuid, absent=choice.random() < 0.5)
        self._end_after(choice.uniform(0.2, 3), lambda: self._node.machine.reset(uuid, force=True))

    def _reset_gpu(self, choice: random.Random) -> None:
        uuid = self._gpu(choice)
        self._void(uuid)
        self._node.machine.reset(uuid, force=True)

    def _destroy_by_hand(self, choice: random.Random) -> None:
        uuid = self._gpu(choice)
        self._void(uuid)
        nvml = SimulatedNvml(self._node.machine)
        nvml.init()
        for instance in self._node.machine.gpu(uuid).instances:
            with contextlib.suppress(NvmlError):  # its own driver was faster, or another fault came first
                for compute in instance.compute_instances:
                    nvml.destroy_compute_instance(uuid, instance.gi_id, compute.ci_id)
                nvml.destroy_gpu_instance(uuid, instance.gi_id)

    def _raise_xid(self, choice: random.Random) -> None:
        self._node.machine.raise_xid(self._gpu(choice), choice.choice(XIDS))

    def _raise_storm(self, choice: random.Random) -> None:
        uuid, xid = self._gpu(choice), choice.choice(XIDS)
        for _ in range(STORM):
            with contextlib.suppress(DocumentError):
                self._node.machine.raise_xid(uuid, xid)

    def _void(self, gpu_uuid: str) -> None:
        with self._guard:
            self._epochs[gpu_uuid] += 1

    # The driver's process

    def _exchange(self, exchange: Callable[[], None]) -> None:
        if self._node.exchanging.locked():
            return
        try:
            exchange()
        except TryAgain as error:
            self._figures.lose(f"no driver serves: {error}")

    def _fill_disk(self, choice: random.Random) -> None:
        driver = self._node.driver
        driver.fill_disk()
        self._end_after(choice.uniform(0.2, 2), driver.empty_disk)

    # Files

    def _damage_one(self, folder: str, choice: random.Random) -> None:
        files = [path for path in list_files(self._node.state_dir / folder) if path.suffix == ".json"]
        if not files or self._node.exchanging.locked():  # one thing at a time is enough
            return
        path = choice.choice(files)
        self.damaged.update(uid for uid in _list_uids(path))
        self._damage(path, choice)

    def _damage_roster(self, choice: random.Random) -> None:
        """Not its copy too: then nothing tells whether a reset took what a half-done claim had made, and it is left."""
        self._damage(self._node.state_dir / "roster.json", choice)

    def _damage(self, path: Path, choice: random.Random) -> None:
        """Truncated, emptied, or noise, in place: what broke it keeps no rules of ours."""
        try:
            data = path.read_bytes()
            path.write_bytes(choice.choice([data[: len(data) // 2], b"", choice.randbytes(200)]))
        except FileNotFoundError:
            return

    def _empty_cdi_folder(self, _choice: random.Random) -> None:
        for path in self._node.cdi_dir.glob("*.json"):
            path.unlink(missing_ok=True)

    def _jump_clock(self, choice: random.Random) -> None:
        """What a jump leaves: files from next year, or from the last."""
        then_s = time.time() + choice.choice([YEAR_S, -YEAR_S])
        for path in list_files(self._node.state_dir):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, (then_s, then_s))

    def _end_after(self, seconds: float, end: Callable[[], None]) -> None:
        number = next(self._numbers)
        with self._guard:
            self._ends[number] = end

        def run() -> None:
            with self._guard:
                due = self._ends.pop(number, None)
            if due is not None:
                due()

        timer = threading.Timer(seconds, run)
        timer.daemon = True
        timer.start()


def _list_uids(path: Path) -> list[str]:
    """The claim that a file is of, by its path."""
    return [part.removeprefix("k8s.gpu.nvidia.com-claim_").removesuffix(".json") for part in path.parts[-3:]]
