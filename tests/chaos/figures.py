"""What a chaos run counts, and how it is told."""

from __future__ import annotations

import collections
import threading
import time
from collections import Counter
from collections.abc import Iterable

LOG_LINES = 20_000


class Figures:
    """Load, faults by kind, what was lost and what leaked; safe to use from many threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._began_s = time.monotonic()
        self.load: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.lost: list[str] = []
        self.leaked: list[str] = []
        self.log: collections.deque[str] = collections.deque(maxlen=LOG_LINES)

    def count(self, what: str) -> None:
        """One more of `what`: claims, prepares, unprepares, refusals."""
        with self._guard:
            self.load[what] += 1

    def refuse(self, verb: str, sentence: str) -> None:
        """A call that the kubelet has to repeat."""
        with self._guard:
            self.load[f"{verb}s refused"] += 1
            self.refusals[sentence] += 1

    def meet(self, kind: str) -> None:
        """A fault is injected now."""
        self.tell(f"fault: {kind}")
        with self._guard:
            self.faults[kind] += 1

    def tell(self, line: str) -> None:
        """A line for the log of the run, which is shown where it fails."""
        self.log.append(f"{time.strftime('%H:%M:%S')} {line}")

    def lose(self, what: str) -> None:
        """A promise was broken, or a claim could not be served or ended."""
        with self._guard:
            self.lost.append(what)

    def leak(self, what: Iterable[str]) -> None:
        """Something is left that belongs to no claim."""
        with self._guard:
            self.leaked.extend(what)

    @property
    def failed(self) -> bool:
        """Whether anything was lost or leaked."""
        return bool(self.lost or self.leaked)

    def render(self) -> str:
        """A line for the terminal while it runs."""
        with self._guard:
            took_s = max(time.monotonic() - self._began_s, 0.001)
            return (
                f"{self.load['claims']} claims in {took_s:.0f} s, {self.load['claims'] / took_s:.1f} a second; "
                f"{sum(self.faults.values())} faults, {len(self.lost)} lost, {len(self.leaked)} leaked"
            )

    def render_all(self) -> str:
        """The summary: load, faults by kind, lost, leaked."""
        head = self.render()
        with self._guard:
            load = ", ".join(f"{count} {what}" for what, count in self.load.items())
            faults = [f"  {count:5} {kind}" for kind, count in sorted(self.faults.items())]
            lost = [f"  {what}" for what in self.lost]
            leaked = [f"  {what}" for what in self.leaked]
            return "\n".join(
                [
                    head,
                    f"load: {load}",
                    "faults injected:",
                    *faults,
                    f"lost: {len(lost)}",
                    *lost,
                    f"leaked: {len(leaked)}",
                    *leaked,
                ]
            )
