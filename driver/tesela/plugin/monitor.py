"""Look again: at the machine every half minute, at the files of prepared claims every two seconds.

The kubelet does not call prepare again before it restarts, not even when it makes a pod's sandbox anew (seen on
1.37.2), so a CDI file that vanishes is the driver's to restore. A look that fails is said once and tried again; nothing
here changes a GPU.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tesela.core.health.observations import ResetSeen
from tesela.core.model import LivePartition
from tesela.core.record import ClaimRecord, ClaimState
from tesela.core.release import is_stale
from tesela.core.roster import Roster
from tesela.plugin.loop import Loop, PausablePart
from tesela.plugin.node import Node
from tesela.plugin.recover import Recovery, recover_claim

log = logging.getLogger(__name__)

FILES_PERIOD_S = 2.0
MACHINE_PERIOD_S = 30.0


def look_at_gpus(node: Node) -> tuple[str, ...]:
    """A look at the machine, and what it proves told to health: the GPUs that lost their partitions.

    Raises what `Lookout.refresh` raises.
    """
    before = node.health.health
    raised = node.lookout.refresh()
    resets = node.lookout.take_resets()
    if resets:
        node.health.observe(*(ResetSeen(gpu_uuid=uuid) for uuid in sorted(resets)), since=before)
    return raised


class Monitor(PausablePart):
    """A thread that looks. `on_change` is called after a look that found something new; it must not block."""

    def __init__(
        self,
        node: Node,
        recovery: Recovery,
        on_change: Callable[[str], None],
        *,
        files_period_s: float = FILES_PERIOD_S,
        machine_period_s: float = MACHINE_PERIOD_S,
    ) -> None:
        self._node = node
        self._recovery = recovery
        self._on_change = on_change
        self._files_period_s = files_period_s
        self._machine_period_s = machine_period_s
        self._machine_due_s = time.monotonic() + machine_period_s
        self._asked = threading.Event()
        self._found = self._look_back()
        self._loop = Loop("monitor", self._turn, first_s=files_period_s, retry_s=files_period_s)

    def start(self) -> None:
        """Begin. What the start's own look found is no news."""
        self._found = self._look_back()
        super().start()

    def resume(self) -> None:
        """Go on, with a look at the machine at once."""
        self._asked.set()
        super().resume()

    def wake(self, reason: str) -> None:
        """Look at the machine at once: something happened to it. Costs nothing, from any thread."""
        log.info("looking at the machine: %s", reason)
        self._asked.set()
        self._loop.wake()

    def _turn(self) -> float:
        """One look, at the machine or at the files, so that one that fails keeps the other from nothing."""
        if self._asked.is_set() or time.monotonic() >= self._machine_due_s:
            self._asked.clear()
            self._machine_due_s = time.monotonic() + self._machine_period_s
            self.look_at_machine()
            return 0.0
        self.restore_files()
        return self._files_period_s

    def look_at_machine(self) -> None:
        """Look at NVML and the host; recover the claims that lost partitions."""
        before = self._node.records.list().records  # what was prepared before the look has to be seen by it
        raised = set(look_at_gpus(self._node))
        touched = [
            record for record in before if raised.intersection(record.gpu_uuids) or self._has_lost_partitions(record)
        ]
        if touched:
            self._recovery.recover(touched)
        # Compared with this thread's last look: the roster on disk may be another process's work.
        found = self._look_back()
        if found != self._found:
            self._found = found
            self._on_change("the machine changed")

    def _look_back(self) -> tuple[Roster, tuple[LivePartition, ...]]:
        """What the last look found."""
        return self._node.lookout.roster, self._node.lookout.inventory.partitions

    def _has_lost_partitions(self, record: ClaimRecord) -> bool:
        """Whether a GPU that answered the last look lacks one; `recover_claim` asks again with nobody at work on it."""
        inventory = self._node.lookout.inventory
        answered = {gpu.uuid for gpu in inventory.gpus}
        live = {one.mig_uuid for one in inventory.partitions}
        return record.state is ClaimState.PREPARED and any(
            partition.mig_uuid not in live
            for device in record.devices
            if device.gpu_uuid in answered
            for partition in device.partitions
        )

    def restore_files(self) -> None:
        """Write again what vanished of the files of prepared claims, or cannot be loaded any more.

        And what names files of a GPU driver that was replaced: a container that starts anew would find them missing.
        """
        prepared = [one for one in self._node.records.list().records if one.state is ClaimState.PREPARED]
        present = self._node.workload.list_complete_claims(prepared)  # last: a file is older than its record
        outdated = self._node.workload.list_outdated_claims()
        for record in prepared:
            uid = record.claim.uid
            if (uid in present and uid not in outdated) or self._is_stale(record):
                continue
            if not recover_claim(self._node, uid):
                continue  # it was being given back
            if uid in present:
                log.info("files of claim %s were written again: what it gets of the GPU driver changed", record.claim)
            else:
                log.warning("files of claim %s vanished or broke; they were written again", record.claim)

    def _is_stale(self, record: ClaimRecord) -> bool:
        """Partitions of another boot or generation have no file to restore."""
        roster, boot_id = self._node.lookout.roster, self._node.host.get_boot_id()
        return any(is_stale(device, roster.find(device.gpu_uuid), boot_id) for device in record.devices)
