"""DeviceTaintRules as the API server keeps them: fields, defaults, checks.

Rules: pkg/apis/resource/validation and pkg/registry/resource/devicetaintrule of Kubernetes 1.37. Pure: decides about
one rule; what rules do to devices and pods is in `scheduler` and `taint_eviction`.
"""

from __future__ import annotations

from typing import Final

from tesela.edge.embedded.problems import Problems
from tesela.edge.embedded.schema import Leaf, ListOf, Schema, Struct
from tesela.edge.embedded.slices import TAINT, check_pool_name, check_taint
from tesela.edge.kube.port import Json

MAX_DRIVER_NAME: Final = 63
MAX_CONDITIONS: Final = 8

RULE_SPEC: Final[Schema] = Struct(
    {
        "deviceSelector": Struct({"driver": Leaf.STRING, "pool": Leaf.STRING, "device": Leaf.STRING}),
        "taint": TAINT,
    }
)
RULE_STATUS: Final[Schema] = Struct({"conditions": ListOf(Leaf.RAW)})


def default_rule(spec: Json, old: Json | None, now: str) -> None:
    """Sets `timeAdded` where it is missing, and anew where the effect changed and the writer left the time alone."""
    taint = spec.setdefault("taint", {})
    taint.setdefault("timeAdded", now)
    if old is None:
        return
    before = old["taint"]
    if taint.get("effect") != before.get("effect") and taint["timeAdded"] == before["timeAdded"]:
        taint["timeAdded"] = now


def check_rule(spec: Json, problems: Problems) -> None:
    """Notes everything that the API server would refuse in this spec (422)."""
    selector = spec.get("deviceSelector") or {}
    if "driver" in selector:
        problems.dns_subdomain("spec.deviceSelector.driver", selector["driver"].lower(), MAX_DRIVER_NAME)
    if "pool" in selector:
        check_pool_name("spec.deviceSelector.pool", selector["pool"], problems)
    if "device" in selector:
        problems.dns_label("spec.deviceSelector.device", selector["device"])
    check_taint(spec["taint"], "spec.taint", problems)


def check_rule_status(status: Json, problems: Problems) -> None:
    """Notes what the API server would refuse in this status: conditions lack what every condition has, or are many."""
    conditions = status.get("conditions", [])
    problems.too_many("status.conditions", len(conditions), MAX_CONDITIONS)
    for index, condition in enumerate(conditions):
        path = f"status.conditions[{index}]"
        for field in ("type", "status", "reason", "lastTransitionTime"):
            if not condition.get(field):
                problems.required(f"{path}.{field}")
