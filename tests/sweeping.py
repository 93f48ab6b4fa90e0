"""Sweeps of a `World`, with a clock that tests turn."""

from __future__ import annotations

from node_world import World
from tesela.core.sweep import Found, MismatchKind, SweepReport
from tesela.edge.store.sweep import SweepStore
from tesela.plugin.recover import Recovery
from tesela.plugin.sweep import Sweeper
from tesela.plugin.sweep_look import GoneClaims


class Sweeps:
    """The sweeper of one driver process; `now_s` is what its clock shows."""

    def __init__(self, world: World) -> None:
        self.now_s = 1000.0
        self.changes: list[str] = []
        self.store = SweepStore(world.state_dir)
        self.sweeper = Sweeper(
            world.node,
            Recovery(world.node),
            self.store,
            on_change=self.changes.append,
            clock=lambda: self.now_s,
            gone=GoneClaims(clock=lambda: self.now_s),
        )

    def sweep(self, after_s: float = 0.0) -> SweepReport:
        """The report of a sweep `after_s` later."""
        self.now_s += after_s
        return self.sweeper.sweep()

    def find(self, kind: MismatchKind, after_s: float = 0.0) -> Found:
        """The only mismatch that a sweep finds, which is of this kind."""
        report = self.sweep(after_s)
        assert [one.mismatch.kind for one in report.found] == [kind], report.found
        return report.found[0]
