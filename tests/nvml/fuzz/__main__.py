"""Looks for new trouble: `make fuzz` runs it for FUZZ_MINUTES. What it finds lies in tests/nvml/fuzz/found/ afterwards.

Three processes side by side: hypothesis against the simulator; spoiled answers against the sanitized library, guided by
coverage where clang is; every function of the library against a simulator behind a hostile proxy. Move what was found
to corpus/ once it is fixed, so that it stays fixed.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from nvml.fuzz import programs, proxy, served
from nvml.fuzz.conversations import conversations
from tesela.edge.simulator.machine import build_machine

FOUND = programs.HERE / "found"
EXAMPLES = 300
MEMORY_BYTES = 4 << 30
PROGRAMS = (("answers", "sanitized"), ("every_call", "sanitized"), ("threads", "sanitized"), ("threads", "threads"))


def fuzz_server(seconds: float) -> None:
    """Hypothesis against the simulator, with new seeds until the time is over."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    gpus = build_machine(served.MACHINE).visible_uuids()
    last: list[Sequence[bytes]] = []
    end, number, done = time.monotonic() + seconds, time.time_ns(), 0

    def attempt(talks: list[list[bytes]]) -> None:
        last[:] = talks
        with tempfile.TemporaryDirectory() as folder, served.served(Path(folder) / "sim.sock") as simulator:
            served.hold_out(simulator, talks)

    while time.monotonic() < end:
        number += 1
        looking = settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        test = seed(number)(looking(given(talks=st.lists(conversations(gpus), min_size=1, max_size=3))(attempt)))
        try:
            test()
        except BaseException:
            for index, talk in enumerate(last):
                (FOUND / f"server-{number}-{index}.bin").write_bytes(b"".join(talk))
            print(f"the simulator: seed {number}, kept as found/server-{number}-*.bin", flush=True)
            raise
        done += EXAMPLES
    print(f"the simulator: {done} examples, nothing found", flush=True)


def fuzz_answers(seconds: float) -> None:
    """Spoiled answers against the sanitized library."""
    inputs = sorted(programs.CORPUS.glob("*.bin"))
    if programs.find_clang():
        program = programs.build("libfuzzer", "libfuzzer")
        limits = [f"-max_total_time={seconds:.0f}", "-timeout=60", "-rss_limit_mb=2048", "-max_len=512"]
        grown = FOUND / "corpus"
        grown.mkdir(exist_ok=True)
        command = [program, *limits, f"-artifact_prefix={FOUND}/answers-", grown, programs.CORPUS]
    else:
        program = programs.build("answers", "sanitized")
        command = [program, "-t", f"{seconds:.0f}", "-s", str(time.time_ns() % 2**32), "-o", FOUND, *inputs]
    ended = programs.run(command, timeout_s=seconds + 120)
    if ended.status:
        raise RuntimeError(f"the library failed, see {FOUND}:\n{ended.report[-20000:]}")
    print(f"answers: {ended.report.strip().splitlines()[-1]}; nothing found", flush=True)


def fuzz_calls(seconds: float) -> None:
    """Every function, and threads at once, against a simulator behind a hostile proxy."""
    names = "\n".join(programs.exported("sanitized"))
    commands = [
        [programs.build("every_call", "sanitized"), "3"],
        [programs.build("threads", "threads"), "6", "2"],
        [programs.build("threads", "sanitized"), "6", "2"],
    ]
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number = time.time_ns() % 2**31
        with tempfile.TemporaryDirectory() as folder:
            upstream, path = Path(folder) / "real.sock", Path(folder) / "proxy.sock"
            with (
                served.served(upstream) as simulator,
                served.lively(simulator),
                proxy.between(upstream, path, proxy.hostile(number)),
            ):
                command = commands[rounds % len(commands)]
                ended = programs.run([*command, str(number)], socket=path, names=names)
        if ended.status:
            (FOUND / f"calls-{number}.txt").write_text(ended.report)
            raise RuntimeError(f"the library failed with seed {number}:\n{ended.report[-20000:]}")
        rounds += 1
    print(f"calls: {rounds} rounds, nothing found", flush=True)


def main() -> int:
    seconds = 60 * float(sys.argv[1])
    FOUND.mkdir(exist_ok=True)
    os.nice(10)
    for program, variant in PROGRAMS:  # with their libraries, and before anybody looks: two builds of one file collide
        programs.build(program, variant)
    looking = [
        multiprocessing.Process(target=look, args=(seconds,)) for look in (fuzz_server, fuzz_answers, fuzz_calls)
    ]
    for process in looking:
        process.start()
    for process in looking:
        process.join()
    return int(any(process.exitcode for process in looking))


if __name__ == "__main__":
    sys.exit(main())
