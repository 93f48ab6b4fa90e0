"""The threads that ask NVML of their own accord, as one part: they start, pause and stop together.

Whoever closes NVML under the running driver (`tesela release-gpu`) pauses them first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tesela.edge.nvml.port import Nvml
from tesela.plugin.deadline import Deadline
from tesela.plugin.health.attribution import Attribution
from tesela.plugin.health.events import Events
from tesela.plugin.health.readings import Readings
from tesela.plugin.monitor import Monitor
from tesela.plugin.node import Node
from tesela.plugin.recover import Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Those who look: at the machine and the files, at the health of each GPU, and at NVML's events."""

    monitor: Monitor
    readings: Readings
    events: Events

    def start(self) -> None:
        """Begin."""
        for part in (self.events, self.readings, self.monitor):
            part.start()

    def stop(self, timeout_s: float) -> bool:
        """End; False where one of them is still inside NVML after `timeout_s`."""
        return _all_within(timeout_s, (self.monitor.stop, self.readings.stop, self.events.stop))

    def find_fault(self) -> str | None:
        """What keeps one of them from working for good, as a sentence."""
        faults = (part.find_fault() for part in (self.events, self.readings, self.monitor))
        return next((fault for fault in faults if fault is not None), None)

    def pause(self, timeout_s: float) -> bool:
        """Call NVML no more until `resume`. False: one of them is still inside NVML after `timeout_s`."""
        return _all_within(timeout_s, (self.monitor.pause, self.readings.pause, self.events.pause))

    def resume(self) -> None:
        """Go on, each with a look at once: nobody knows what happened meanwhile."""
        for part in (self.monitor, self.readings, self.events):
            part.resume()


def build_observers(node: Node, nvml: Nvml, recovery: Recovery, *, on_change: Callable[[str], None]) -> Observers:
    """The observers of a node; `on_change` is told, with a reason, when the machine is not what it was."""
    monitor = Monitor(node, recovery, on_change)
    readings = Readings(nvml=nvml, host=node.host, lookout=node.lookout, keeper=node.health, on_change=monitor.wake)
    events = Events(
        nvml=nvml,
        lookout=node.lookout,
        attribution=Attribution(nvml=nvml, records=node.records, roster=lambda: node.lookout.roster),
        keeper=node.health,
        on_event=readings.wake,
        telemetry=node.telemetry,
    )
    return Observers(monitor=monitor, readings=readings, events=events)


def _all_within(timeout_s: float, ends: tuple[Callable[[float], bool], ...]) -> bool:
    """Whether all end within the time; each is asked, whatever the others say."""
    deadline = Deadline.after(timeout_s)
    ended = [end(deadline.left_s) for end in ends]
    return all(ended)
