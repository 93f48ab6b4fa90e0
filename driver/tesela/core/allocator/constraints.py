"""matchAttribute and distinctAttribute over the devices picked so far.

The search picks and gives back in last-in, first-out order, so each constraint keeps a stack of the values it covers.
"""

from __future__ import annotations

from tesela.core.allocator.model import AttributeConstraint, Demand, Device
from tesela.core.selector.attributes import SCALAR_KINDS, Attribute


class ConstraintStack:
    """One constraint of a claim and the values of the devices it covers, in the order picked."""

    def __init__(self, constraint: AttributeConstraint) -> None:
        self._requests = constraint.requests
        self._name = constraint.match_attribute or constraint.distinct_attribute or ""
        self._must_match = constraint.match_attribute is not None
        self._values: list[Attribute] = []

    def push(self, demand: Demand, device: Device) -> bool:
        """Covers `device` if the constraint stays satisfied; a device without the attribute never satisfies it."""
        if not self._covers(demand):
            return True
        value = lookup_attribute(device, self._name)
        if value is None:
            return False
        if self._must_match:
            fits = not self._values or (value.kind in SCALAR_KINDS and value == self._values[0])
        else:
            fits = not self._values or (value.kind in SCALAR_KINDS and value not in self._values)
        if fits:
            self._values.append(value)
        return fits

    def pop(self, demand: Demand) -> None:
        """Takes back the last successful `push` for `demand`."""
        if self._covers(demand):
            self._values.pop()

    def _covers(self, demand: Demand) -> bool:
        if not self._requests:
            return True
        return (demand.parent or demand.name) in self._requests or demand.result_name in self._requests


def lookup_attribute(device: Device, qualified_name: str) -> Attribute | None:
    """The attribute under its full name, or under its bare name if the domain is the device's own driver."""
    value = device.attributes.get(qualified_name)
    if value is not None:
        return value
    domain, separator, name = qualified_name.partition("/")
    if separator and domain == device.id.driver:
        return device.attributes.get(name)
    return None
