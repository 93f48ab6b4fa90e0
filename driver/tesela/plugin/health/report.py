"""The health of every device of this node, as the kubelet is told of it (`edge/kubelet/health.py`).

A function of the durable facts alone: findings, roster, records. So a process that does not hold the publisher's lock
says the same as the one that does, and a driver that comes back says what the one before it said. Every device that
a known GPU may ever be is reported, whatever is published at the moment: the kubelet asks only about what pods use, and
a device that leaves the pool while a pod uses it must not fall silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tesela.core.claim_status import find_losses
from tesela.core.errors import StateError, TryAgain
from tesela.core.geometry import plan_partitions
from tesela.core.health.model import NodeHealth
from tesela.core.health.verdict import Verdict, plan_verdict
from tesela.core.model import Placement
from tesela.core.naming import render_partition_name
from tesela.core.record import ClaimRecord
from tesela.core.released import NOT_RELEASED, Released, describe_released
from tesela.core.roster import EMPTY_ROSTER, Roster
from tesela.edge.kubelet.port import DeviceHealth

_Place: TypeAlias = tuple[str, str, Placement | None]
"""A device's name, its GPU and where on it; None is the whole GPU."""


class HealthReport:
    """A `HealthSource` over what the node knows. Reads no GPU; from any thread.

    `wake` says that something may have changed: findings, GPUs, claims, or whether NVML is `released`.
    """

    def __init__(
        self,
        *,
        pool: str,
        health: Callable[[], NodeHealth],
        roster: Callable[[], Roster],
        records: Callable[[], Sequence[ClaimRecord]],
        released: Callable[[], Released] = lambda: NOT_RELEASED,
    ) -> None:
        self._pool = pool
        self._health = health
        self._roster = roster
        self._records = records
        self._released = released
        self._last_records: Sequence[ClaimRecord] = ()
        self._known: tuple[Roster, tuple[_Place, ...]] = (EMPTY_ROSTER, ())
        self._made: tuple[tuple[object, ...], tuple[DeviceHealth, ...]] = ((), ())
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` at each `wake`."""
        self._listeners.append(on_change)

    def wake(self) -> None:
        """Whoever listens asks again. Never blocks."""
        for listener in self._listeners:
            listener()

    def get_report(self) -> tuple[DeviceHealth, ...]:
        """Every device of the pool: GPU by GPU, the partitions in publishing order, then the whole GPU.

        The same report again while nothing it is made from changed: an idle driver sends it all day.
        """
        records = self._list_records()
        losses = _list_losses(records)
        facts = (self._health(), self._list_places(records), losses, describe_released(self._released()))
        known, report = self._made
        if facts != known:
            report = self._render_all(*facts)
            self._made = (facts, report)
        return report

    def _list_places(self, records: Sequence[ClaimRecord]) -> tuple[_Place, ...]:
        roster, known = self._roster(), self._known
        if known[0] is not roster:
            known = self._known = (roster, _list_known_places(roster))
        places = known[1]
        names = {device for device, _, _ in places}
        # of a profile that today's GPU driver does not know any more, or of a GPU that is
        others = [
            (device.device, device.gpu_uuid, device.current.placement if device.current else None)
            for record in records
            for device in record.devices
            if device.pool == self._pool and device.device not in names
        ]
        return (*places, *dict.fromkeys(others)) if others else places

    def _render_all(
        self, health: NodeHealth, places: tuple[_Place, ...], losses: frozenset[tuple[str, str]], unread: str
    ) -> tuple[DeviceHealth, ...]:
        messages = dict(losses)
        return tuple(
            self._render(device, plan_verdict(health, gpu_uuid, placement), messages.get(device, ""), unread)
            for device, gpu_uuid, placement in places
        )

    def _list_records(self) -> Sequence[ClaimRecord]:
        """What was read last where the folder cannot be read: that must not make devices unknown."""
        try:
            self._last_records = self._records()
        except (StateError, TryAgain):
            return self._last_records
        return self._last_records

    def _render(self, device: str, verdict: Verdict, loss: str, unread: str) -> DeviceHealth:
        healthy, told = verdict.healthy, [verdict.message] if verdict.message else []
        if loss:
            healthy, told = False, [loss, *told]
        elif unread and healthy is not False:
            healthy, told = None, [unread, *told]
        return DeviceHealth(pool=self._pool, device=device, healthy=healthy, message="; ".join(told))


def _list_losses(records: Sequence[ClaimRecord]) -> frozenset[tuple[str, str]]:
    """Devices that a claim lost, with what befell them.

    The kubelet asks by the device's name alone. Where an admin-access claim lost what another claim has again, the
    device is as that one has it.
    """
    losses: dict[tuple[str, bool], str] = {}
    well: set[str] = set()
    for record in sorted(records, key=lambda one: one.claim.uid):
        found = find_losses(record)
        losses.update({(device.device, device.admin_access): loss.message for device, loss in found.items()})
        well.update(one.device for one in record.devices if one not in found and not one.admin_access)
    return frozenset(
        (device, message)
        for (device, admin), message in losses.items()
        if not admin or (device not in well and (device, False) not in losses)
    )


def _list_known_places(roster: Roster) -> tuple[_Place, ...]:
    return tuple(
        place
        for known in roster.gpus
        for place in (
            *(
                (render_partition_name(known.number, one.profile, one.placement), known.gpu.uuid, one.placement)
                for one in plan_partitions(known.gpu)
            ),
            (known.name, known.gpu.uuid, None),
        )
    )
