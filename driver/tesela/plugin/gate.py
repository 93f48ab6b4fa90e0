"""Which GPUs are still being recovered: prepare waits for its own, and for no other."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tesela.core.errors import TryAgain
from tesela.plugin.deadline import Deadline


class RecoveryGate:
    """Open for every GPU, but for those that `close` was called for until their events are set."""

    def __init__(self) -> None:
        self._events: dict[str, list[threading.Event]] = {}
        self._guard = threading.Lock()

    def close(self, gpu_uuid: str, until: threading.Event) -> None:
        """Keep this GPU closed until `until` is set; several may be needed."""
        with self._guard:
            self._events.setdefault(gpu_uuid, []).append(until)

    def wait(self, gpu_uuids: Iterable[str], deadline: Deadline) -> None:
        """Until these GPUs are open. TryAgain at the deadline, naming the GPU."""
        for gpu_uuid in gpu_uuids:
            with self._guard:
                events = [event for event in self._events.get(gpu_uuid, ()) if not event.is_set()]
                self._events[gpu_uuid] = events
            for event in events:
                if not event.wait(deadline.left_s):
                    raise TryAgain(
                        f"claims of GPU {gpu_uuid} are still being recovered after a restart; the kubelet tries again "
                        "by itself"
                    )
