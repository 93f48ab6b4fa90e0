"""Faults for the comparison to find: each replaces one piece of one module of a copy of the allocator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """In `module`, `before` (there once) becomes `after`."""

    name: str
    module: str
    before: str
    after: str


FAULTS = (
    Fault("counters of devices in use are not charged", "counters.py", "if allocated.holds(device.id):", "if False:"),
    Fault("counters are not refunded when backtracking", "counters.py", "left[counter] += nanos", "pass"),
    Fault("each share pays the counters again", "attempt.py", "not (device.allow_multiple and", "not (False and"),
    Fault("NoExecute keeps nobody away", "taints.py", '{"NoSchedule", "NoExecute"}', '{"NoSchedule"}'),
    Fault(
        "bare attribute names are not the driver's",
        "constraints.py",
        "if separator and domain == device.id.driver:",
        "if False:",
    ),
    Fault("a constraint covers every request", "constraints.py", "if not self._requests:", "if True:"),
    Fault("distinct values may repeat", "constraints.py", "value not in self._values", "True"),
    Fault(
        "the last alternative is tried first",
        "search.py",
        "for plan in alternatives:",
        "for plan in reversed(alternatives):",
    ),
    Fault("a claim may hold 64 devices", "plan.py", "RESULTS_MAX = 32", "RESULTS_MAX = 64"),
    Fault("slices come in any order", "pools.py", "sorted(mine, key=lambda piece: piece.name.encode())", "list(mine)"),
    Fault(
        "old generations count",
        "pools.py",
        "piece.generation > known[0].generation:",
        "piece.generation < known[0].generation:",
    ),
    Fault("pools with binding conditions are not last", "pools.py", "(_has_binding_conditions(pool), ", "(False, "),
    Fault(
        "requests are rounded down to a step",
        "capacity.py",
        "-(-(_units(requested, unit) - start) // width)",
        "((_units(requested, unit) - start) // width)",
    ),
    Fault("admin access needs a free device", "attempt.py", "if demand.admin_access:", "if False:"),
    Fault("selectors of the class are skipped", "plan.py", "device_class.selectors, entry", "(), entry"),
    Fault("All takes what the constraints allow", "search.py", "must=plan.wants_all", "must=False"),
    Fault("devices of other nodes are taken", "plan.py", "(not entry.per_device or", "(True or"),
)
