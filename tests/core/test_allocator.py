"""The allocator on worlds written by hand, and rules that hold on worlds of any kind."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from e2e.allocator_compare.generated import make_world
from e2e.allocator_compare.hand_written import load_worlds, summarize
from e2e.allocator_compare.judge import judge
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela.core.allocator import parse_allocated, parse_slices
from tesela.core.allocator.counters import consumption, counters_left_nanos
from tesela.core.allocator.model import Device, DeviceId, NodeInfo
from tesela.core.allocator.pools import gather_pools
from tesela.core.quantity import ZERO, parse_quantity

GENERATED = st.builds(make_world, seed=st.integers(0, 2**32), index=st.just(0))
NODE = NodeInfo(name="node-a", labels={"example.com/zone": "west"})


@pytest.mark.parametrize("world", load_worlds(), ids=lambda world: world["name"])
def test_hand_written_world(world):
    assert summarize(judge(world), world["expect"]) == world["expect"]


@settings(max_examples=60, deadline=None)
@given(GENERATED)
def test_no_counter_is_overdrawn(world):
    taken = _newly_taken(world)
    pools = gather_pools(parse_slices(world["slices"]), NODE)

    overdrawn = [
        (pool.id, counter)
        for pool in pools
        for counter, nanos in counters_left_nanos(pool, parse_allocated(world["allocatedClaims"])).items()
        if 0 <= nanos < sum(_consumed(entry.device, counter) for entry in pool.devices if entry.device.id in taken)
    ]

    assert overdrawn == []


@settings(max_examples=60, deadline=None)
@given(GENERATED)
def test_no_device_is_given_twice_or_while_it_is_in_use(world):
    held = parse_allocated(world["allocatedClaims"]).dedicated
    given_whole = Counter(_id(result) for result in _results(world) if _holds_whole(result))

    assert [device for device, count in given_whole.items() if count > 1 or device in held] == []


@settings(max_examples=60, deadline=None)
@given(GENERATED)
def test_shares_stay_within_the_capacity(world):
    in_use = parse_allocated(world["allocatedClaims"]).consumed
    capacity = {
        entry.device.id: entry.device.capacity
        for pool in gather_pools(parse_slices(world["slices"]), NODE)
        for entry in pool.devices
    }
    total: Counter[tuple[DeviceId, str]] = Counter()
    for result in _results(world):
        for name, amount in result.get("consumedCapacity", {}).items():
            total[_id(result), name] += parse_quantity(amount).nanos

    assert [
        (device, name)
        for (device, name), nanos in total.items()
        if nanos + in_use.get(device, {}).get(name, ZERO).nanos > capacity[device][name].value.nanos
    ] == []


@settings(max_examples=60, deadline=None)
@given(GENERATED)
def test_results_follow_the_requests_and_stay_within_32(world):
    allocations = judge(world).get("allocations", [])

    for claim, allocation in zip(world["claims"], allocations, strict=False):
        names = [result["request"].split("/")[0] for result in allocation["devices"]["results"]]
        order = [request["name"] for request in claim["spec"]["devices"]["requests"]]
        assert list(dict.fromkeys(names)) == order
        assert len(names) <= 32


@settings(max_examples=40, deadline=None)
@given(GENERATED, st.integers(0, 1000))
def test_the_answer_does_not_depend_on_the_order_of_objects(world, seed):
    shuffled = {**world, "slices": Random(seed).sample(world["slices"], len(world["slices"]))}

    assert judge(shuffled) == judge(world)


def _results(world: dict[str, Any]) -> list[dict[str, Any]]:
    return [result for allocation in judge(world).get("allocations", []) for result in allocation["devices"]["results"]]


def _id(result: dict[str, Any]) -> DeviceId:
    return DeviceId(result["driver"], result["pool"], result["device"])


def _holds_whole(result: dict[str, Any]) -> bool:
    return not result.get("adminAccess") and "shareID" not in result


def _newly_taken(world: dict[str, Any]) -> set[DeviceId]:
    allocated = parse_allocated(world["allocatedClaims"])
    return {_id(result) for result in _results(world) if not allocated.holds(_id(result))}


def _consumed(device: Device, counter: tuple[str, str]) -> int:
    return sum(nanos for name, nanos in consumption(device) if name == counter)
