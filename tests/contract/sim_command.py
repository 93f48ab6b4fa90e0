"""The `tesela sim` command, in this process or as the program, against a simulator that runs in this process."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tesela.cli import sim
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.server import SimulatorServer

TESELA = "import sys; from tesela.cli.main import main; sys.exit(main())"


@contextmanager
def served(path: Path, spec: str) -> Iterator[SimulatorServer]:
    """A simulator of the machine `spec`, of which every hung call ends with the block."""
    server = SimulatorServer(build_machine(spec), path)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def run(server: SimulatorServer, *words: str) -> int:
    """The exit code of one operation, which writes where this process writes."""
    parser = argparse.ArgumentParser(prog="tesela sim")
    sim.add_arguments(parser)
    return sim.run(parser.parse_args([*words, "--socket", str(server.path)]))
