"""Worlds for tests of what the driver must survive."""

from node_fixtures import build, short_path, world

__all__ = ["build", "short_path", "world"]
