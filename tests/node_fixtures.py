"""Fixtures of worlds, for every folder whose tests run the node program; a test ends with a look at the invariants."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from node_world import make_world


@pytest.fixture
def build(tmp_path):
    """Builds a started world with the given GPUs; the invariants are checked when the test ends."""
    worlds = []

    def make(gpus, **fields):
        root = tmp_path / f"node-{len(worlds)}"
        root.mkdir()
        worlds.append(make_world(root, gpus, **fields))
        return worlds[-1]

    yield make
    for world in worlds:
        world.check()


@pytest.fixture
def world(build):
    """Two A100-40GB, the first in MIG mode, and two H100-80GB."""
    return build("a100-40gb:mig,a100-40gb,h100-80gb*2")


@pytest.fixture
def ref(world):
    """A claim that holds a partition of the world's first GPU."""
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    return ref


@pytest.fixture
def short_path():
    """The path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tesela-") as folder:
        yield Path(folder)
