"""How much of a device's capacities a request takes, and whether that is there (consumable capacity).

What a request takes of one capacity: what it asks for, rounded by the capacity's request policy; the policy's default
or the whole value where it asks for nothing. A request may only name capacities that the device has, by their exact
keys. Rules of consumable_capacity.go.
"""

from __future__ import annotations

from collections.abc import Mapping

from tesela.core.allocator.model import Capacity, RequestPolicy
from tesela.core.allocator.verdict import FatalError
from tesela.core.quantity import INT64_MAX, NANOS, ZERO, Quantity

Amounts = Mapping[str, Quantity]

_MILLI_NANOS = 10**6
_NOT_REPRESENTABLE = "capacity request cannot be represented in the device's range arithmetic"


def plan_consumption(requested: Amounts, capacity: Mapping[str, Capacity]) -> dict[str, Quantity] | None:
    """What a request takes of every capacity, or None where the device or a policy does not allow it.

    `FatalError` when an amount cannot be represented in int64 or is negative: the scheduler ends its cycle then.
    """
    if any(name not in capacity for name in requested):
        return None
    taken = {name: _take(name, requested.get(name), entry) for name, entry in capacity.items()}
    if any(_violates(taken[name], entry.policy) for name, entry in capacity.items()):
        return None
    return taken


def has_room(taken: Amounts, capacity: Mapping[str, Capacity], in_use: Amounts, in_attempt: Amounts) -> bool:
    """Whether `taken` fits beside what allocated claims and this attempt take already."""
    return all(
        taken[name] + in_use.get(name, ZERO) + in_attempt.get(name, ZERO) <= entry.value
        for name, entry in capacity.items()
    )


def _take(name: str, requested: Quantity | None, capacity: Capacity) -> Quantity:
    policy = capacity.policy
    if requested is None:
        taken = policy.default if policy is not None and policy.default is not None else capacity.value
    elif policy is None:
        taken = requested
    elif policy.range_min is not None:
        taken = _round_up_to_step(name, requested, policy, policy.range_min)
    else:
        taken = next((value for value in policy.valid_values if requested <= value), requested)
    if taken < ZERO:
        raise FatalError(f'capacity "{name}": capacity value is negative')
    return taken


def _round_up_to_step(name: str, requested: Quantity, policy: RequestPolicy, minimum: Quantity) -> Quantity:
    if requested < minimum:
        return minimum
    step = policy.range_step
    if step is None:
        return requested
    unit = _range_unit_nanos(policy)
    if (unit == _MILLI_NANOS and requested.nanos % unit) or _units(requested, unit) > INT64_MAX:
        raise FatalError(f'capacity "{name}": {_NOT_REPRESENTABLE}: request {requested}')
    start, width = _units(minimum, unit), _units(step, unit)
    rounded = start + -(-(_units(requested, unit) - start) // width) * width
    if rounded > INT64_MAX:
        raise FatalError(f'capacity "{name}": {_NOT_REPRESENTABLE}: rounding request {requested} up to the next step')
    return Quantity(rounded * unit, step.format)


def _violates(taken: Quantity, policy: RequestPolicy | None) -> bool:
    if policy is None or taken == policy.default:
        return False
    if policy.range_min is not None:
        return _violates_range(taken, policy, policy.range_min)
    return bool(policy.valid_values) and taken not in policy.valid_values


def _violates_range(taken: Quantity, policy: RequestPolicy, minimum: Quantity) -> bool:
    if policy.range_max is not None and taken > policy.range_max:
        return True
    if policy.range_step is None:
        return False
    unit = _range_unit_nanos(policy)
    if unit == _MILLI_NANOS and not _is_milli(taken):
        return True
    return (_units(taken, unit) - _units(minimum, unit)) % _units(policy.range_step, unit) != 0


def _range_unit_nanos(policy: RequestPolicy) -> int:
    """Ranges are computed in thousandths where all of min, max and step fit that in int64, else in whole units."""
    bounds = [bound for bound in (policy.range_min, policy.range_max, policy.range_step) if bound is not None]
    return _MILLI_NANOS if all(_is_milli(bound) for bound in bounds) else NANOS


def _is_milli(quantity: Quantity) -> bool:
    return quantity.nanos % _MILLI_NANOS == 0 and abs(quantity.nanos // _MILLI_NANOS) <= INT64_MAX


def _units(quantity: Quantity, unit_nanos: int) -> int:
    return -(-quantity.nanos // unit_nanos)
