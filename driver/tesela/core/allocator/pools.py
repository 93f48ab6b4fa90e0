"""Slices into pools as one node sees them: the current generation only, complete or not, valid or not, in trial order.

Pools come by driver and pool name, those with binding conditions after all others; within a pool, slices come by
object name and devices as their slice lists them. That order is the scheduler's first-fit order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tesela.core.allocator.model import CounterSet, Device, DeviceId, NodeInfo, NodeScope, PoolId, Slice
from tesela.core.allocator.nodes import scope_matches
from tesela.core.quantity import Quantity

CounterId = tuple[str, str]
"""A counter set's name and a counter's name in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDevice:
    """A device that can be picked; `scope` is where it can be reached, `per_device` if the device says so itself."""

    device: Device
    pool: PoolId
    scope: NodeScope
    per_device: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool's current generation. An incomplete or invalid pool offers nothing; `invalid_reason` says why."""

    id: PoolId
    is_incomplete: bool = False
    invalid_reason: str | None = None
    devices: tuple[PoolDevice, ...] = ()
    other_devices: tuple[Device, ...] = ()
    counters: Mapping[CounterId, Quantity] = field(default_factory=dict)

    @property
    def is_usable(self) -> bool:
        """Whether devices may be picked from it."""
        return not self.is_incomplete and self.invalid_reason is None


def gather_pools(slices: Sequence[Slice], node: NodeInfo) -> tuple[Pool, ...]:
    """The pools with at least one slice for `node`, in trial order.

    A pool whose slices for the node are fewer than it announces is checked against all slices: a newer generation
    elsewhere makes it obsolete (left out), a wrong number makes it incomplete.
    """
    slices = [piece for piece in slices if not _uses_compatibility_groups(piece)]
    relevant = _newest_by_pool(piece for piece in slices if _is_relevant(piece, node))
    everything: dict[PoolId, list[Slice]] = {}
    for piece in slices:
        everything.setdefault(piece.pool, []).append(piece)
    pools = []
    for pool_id, mine in relevant.items():
        if len(mine) == mine[0].slice_count:
            pools.append(_build_pool(pool_id, mine, mine))
            continue
        generation = mine[0].generation
        if any(piece.generation > generation for piece in everything[pool_id]):
            continue
        same = [piece for piece in everything[pool_id] if piece.generation == generation]
        if len(same) == mine[0].slice_count:
            pools.append(_build_pool(pool_id, mine, same))
        else:
            pools.append(Pool(id=pool_id, is_incomplete=True))
    return tuple(sorted(pools, key=lambda pool: (_has_binding_conditions(pool), _byte_order(pool.id))))


def _byte_order(pool: PoolId) -> tuple[bytes, bytes]:
    return pool.driver.encode(), pool.pool.encode()


def _uses_compatibility_groups(piece: Slice) -> bool:
    return any(consumption.has_compatibility_groups for device in piece.devices for consumption in device.consumes)


def _is_relevant(piece: Slice, node: NodeInfo) -> bool:
    if piece.scope.is_set:
        return scope_matches(piece.scope, node)
    return piece.per_device_node_selection and any(scope_matches(device.scope, node) for device in piece.devices)


def _newest_by_pool(slices: Iterable[Slice]) -> dict[PoolId, list[Slice]]:
    pools: dict[PoolId, list[Slice]] = {}
    for piece in slices:
        known = pools.get(piece.pool)
        if known is None or piece.generation > known[0].generation:
            pools[piece.pool] = [piece]
        elif piece.generation == known[0].generation:
            known.append(piece)
    return pools


def _build_pool(pool_id: PoolId, mine: Sequence[Slice], everything: Sequence[Slice]) -> Pool:
    mine = sorted(mine, key=lambda piece: piece.name.encode())
    names = {piece.name for piece in mine}
    others = [piece for piece in everything if piece.name not in names]
    counter_sets = [counter_set for piece in (*mine, *others) for counter_set in piece.shared_counters]
    devices = tuple(
        PoolDevice(
            device=device,
            pool=pool_id,
            scope=device.scope if piece.per_device_node_selection else piece.scope,
            per_device=piece.per_device_node_selection,
        )
        for piece in mine
        if not piece.shared_counters
        for device in piece.devices
    )
    other_devices = tuple(device for piece in others if not piece.shared_counters for device in piece.devices)
    counters = {
        (counter_set.name, name): value for counter_set in counter_sets for name, value in counter_set.counters.items()
    }
    reason = (
        _duplicate_device([entry.device.id for entry in devices])
        or _duplicate_counter_set(counter_sets)
        or _unknown_counter([entry.device for entry in devices], counter_sets)
        or _unknown_counter(other_devices, counter_sets)
    )
    if reason:
        return Pool(id=pool_id, invalid_reason=reason)
    return Pool(id=pool_id, devices=devices, other_devices=other_devices, counters=counters)


def _duplicate_device(devices: Sequence[DeviceId]) -> str | None:
    seen: set[DeviceId] = set()
    for device in devices:
        if device in seen:
            return f"duplicate device name {device.device}"
        seen.add(device)
    return None


def _duplicate_counter_set(counter_sets: Sequence[CounterSet]) -> str | None:
    seen: set[str] = set()
    for counter_set in counter_sets:
        if counter_set.name in seen:
            return f"duplicate counter set name {counter_set.name}"
        seen.add(counter_set.name)
    return None


def _unknown_counter(devices: Iterable[Device], counter_sets: Sequence[CounterSet]) -> str | None:
    known = {counter_set.name: counter_set.counters for counter_set in counter_sets}
    for device in devices:
        for consumption in device.consumes:
            if consumption.counter_set not in known:
                return f"counter set {consumption.counter_set} not found"
            for name in consumption.counters:
                if name not in known[consumption.counter_set]:
                    return f"counter {name} not found in counter set {consumption.counter_set}"
    return None


def _has_binding_conditions(pool: Pool) -> bool:
    return any(entry.device.binding_conditions is not None for entry in pool.devices)
