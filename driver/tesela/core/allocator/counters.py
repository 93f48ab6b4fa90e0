"""Shared counters of a pool: what is left after allocated devices, and what this attempt takes.

What is left may be negative, for instance when a counter set shrank under allocated devices: then no device of the
pool that consumes counters can be picked at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from tesela.core.allocator.model import AllocatedState, Device, PoolId
from tesela.core.allocator.pools import CounterId, Pool


class Counters:
    """The counters of all pools during one attempt; every `charge` that succeeds is undone by one `refund`."""

    def __init__(self, allocated: AllocatedState) -> None:
        self._allocated = allocated
        self._left_nanos: dict[PoolId, dict[CounterId, int]] = {}
        self._is_overdrawn: dict[PoolId, bool] = {}

    def charge(self, pool: Pool, device: Device) -> bool:
        """Takes what `device` consumes if every counter of the pool stays at zero or above."""
        left = self._left(pool)
        if self._is_overdrawn[pool.id]:
            return False
        for counter, nanos in consumption(device):
            left[counter] -= nanos
        if all(left[counter] >= 0 for counter, _ in consumption(device)):
            return True
        self.refund(pool, device)
        return False

    def refund(self, pool: Pool, device: Device) -> None:
        """Gives back what `charge` took."""
        left = self._left(pool)
        for counter, nanos in consumption(device):
            left[counter] += nanos

    def _left(self, pool: Pool) -> dict[CounterId, int]:
        left = self._left_nanos.get(pool.id)
        if left is None:
            left = counters_left_nanos(pool, self._allocated)
            self._left_nanos[pool.id] = left
            self._is_overdrawn[pool.id] = any(nanos < 0 for nanos in left.values())
        return left


def counters_left_nanos(pool: Pool, allocated: AllocatedState) -> dict[CounterId, int]:
    """Each counter's value, in billionths, less what allocated devices of the pool consume; it may be negative.

    A device counts while it is published in the pool's current generation, on this node or another, and once however
    many shares it has.
    """
    left = {counter: value.nanos for counter, value in pool.counters.items()}
    for device in (*(entry.device for entry in pool.devices), *pool.other_devices):
        if allocated.holds(device.id):
            for counter, nanos in consumption(device):
                left[counter] -= nanos
    return left


def consumption(device: Device) -> Iterator[tuple[CounterId, int]]:
    """What the device takes from each counter, in billionths."""
    for entry in device.consumes:
        for name, value in entry.counters.items():
            yield (entry.counter_set, name), value.nanos
