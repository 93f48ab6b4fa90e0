"""Worlds for tests of the node program; every test ends with a look at the invariants."""

from node_fixtures import build, ref, short_path, world

__all__ = ["build", "ref", "short_path", "world"]
