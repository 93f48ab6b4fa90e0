"""Worlds for tests of what the driver must survive."""

import pytest
from node_fixtures import build, ref, short_path, world
from survive.program import Program

__all__ = ["build", "ref", "short_path", "world"]


@pytest.fixture
def program(short_path):
    """The whole program over two A100-40GB in MIG mode, not started yet."""
    program = Program(short_path, "a100-40gb:mig*2")
    yield program
    program.close()
