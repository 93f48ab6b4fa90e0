"""A pool's slices: devices and counter sets packed within the API's limits, in the order in which they are tried.

The scheduler reads slices by object name and devices in slice order, so the position in `Pool.slices` becomes the front
of the object's name. A GPU's devices stay in one slice where they fit, so that a change to one GPU rewrites one slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tesela.core.slices.counters import render_counter_set
from tesela.core.slices.device import render_device
from tesela.core.slices.offer import GpuOffer, plan_offers
from tesela.core.slices.state import ApiAbilities, Json, PoolState

MAX_DEVICES = 64
"""Devices of a slice with counters or taints; always kept to, because any device may be tainted later."""

MAX_COUNTER_SETS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceContent:
    """What one slice holds."""

    counter_sets: tuple[Json, ...] = ()
    devices: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool ready to be compared with the API: at least one slice, because an empty pool is a slice too."""

    name: str
    slices: tuple[SliceContent, ...]
    remarks: tuple[str, ...] = ()


def render_pool(state: PoolState, abilities: ApiAbilities) -> Pool:
    """The whole pool of a node, a function of `state` and of what its API server stores."""
    offers = plan_offers(state, abilities)
    rendered = [_render_gpu(offer, state) for offer in offers if offer.devices]
    if abilities.split:
        counter_sets = tuple(chain.from_iterable(gpu.counter_sets for gpu in rendered))
        slices = [
            SliceContent(counter_sets=counter_sets[start : start + MAX_COUNTER_SETS])
            for start in range(0, len(counter_sets), MAX_COUNTER_SETS)
        ]
        devices_only = [SliceContent(devices=part) for gpu in rendered for part in _cut(gpu.devices)]
        slices.extend(_pack(devices_only))
    else:
        slices = list(_pack(_fit_one_slice(gpu) for gpu in rendered))
    remarks = tuple(chain.from_iterable(offer.remarks for offer in offers))
    return Pool(name=state.pool, slices=tuple(slices) or (SliceContent(),), remarks=remarks)


def _render_gpu(offer: GpuOffer, state: PoolState) -> SliceContent:
    return SliceContent(
        counter_sets=(render_counter_set(offer),) if offer.counted else (),
        devices=tuple(render_device(device, offer, state.roster, state.health) for device in offer.devices),
    )


def _fit_one_slice(gpu: SliceContent) -> SliceContent:
    # Before 1.35 a device may name only the counter sets of its own slice. No known model comes near 64 devices.
    if gpu.counter_sets and len(gpu.devices) > MAX_DEVICES:
        return SliceContent(counter_sets=gpu.counter_sets, devices=gpu.devices[-MAX_DEVICES:])
    return gpu


def _cut(devices: Sequence[Json]) -> Iterator[tuple[Json, ...]]:
    for start in range(0, len(devices), MAX_DEVICES):
        yield tuple(devices[start : start + MAX_DEVICES])


def _pack(contents: Iterable[SliceContent]) -> Iterator[SliceContent]:
    """Joins neighbours, in order, while a slice has room."""
    open_slice = SliceContent()
    for content in contents:
        joined = SliceContent(
            counter_sets=open_slice.counter_sets + content.counter_sets, devices=open_slice.devices + content.devices
        )
        if len(joined.devices) <= MAX_DEVICES and len(joined.counter_sets) <= MAX_COUNTER_SETS:
            open_slice = joined
            continue
        yield open_slice
        open_slice = content
    if open_slice.devices:
        yield open_slice
