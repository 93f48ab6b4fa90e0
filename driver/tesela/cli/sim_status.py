"""The text of `tesela sim status`: a line per call that is held up, GPU, instance, process and fault."""

from __future__ import annotations

from typing import Any

_MODES = {0: "off", 1: "on"}


def render_status(status: dict[str, Any]) -> str:
    """The answer of the status operation as lines for people; `-o json` has every field."""
    lines = [
        f"driver {status['driver_version']}, loaded {status['driver_loads']} time(s), boot {status['boot_id']}",
    ]
    for call in status["calls"]:
        gpu = f" on {call['gpu']}" if call["gpu"] else ""
        hint = "; `tesela sim release` lets it go on" if call["phase"] == "hung" else ""
        lines.append(f"under way: {call['function']}{gpu} ({call['phase']}{hint})")
    for gpu in status["gpus"]:
        lines.extend(_gpu_lines(gpu))
    lines.extend(f"injected {_misbehaviour(what)}" for what in status["misbehaviours"])
    return "\n".join(lines)


def _gpu_lines(gpu: dict[str, Any]) -> list[str]:
    index = "-" if gpu["index"] is None else gpu["index"]
    mode = _MODES[gpu["mig_current"]]
    if gpu["mig_pending"] != gpu["mig_current"]:
        mode += f" ({_MODES[gpu['mig_pending']]} after a reset)"
    head = f"GPU {index} {gpu['uuid']} {gpu['product_name']} {gpu['pci_bus_id']} minor {gpu['minor']} MIG {mode}"
    lines = [head if gpu["presence"] == "present" else f"{head} {gpu['presence'].upper()}"]
    for instance in gpu["instances"]:
        placement = instance["placement"]
        devices = ", ".join(c["mig_uuid"] for c in instance["compute_instances"]) or "no compute instance"
        where = f"{placement['start']}:{placement['size']}"
        lines.append(f"  gi {instance['gi_id']} {instance['profile']} at {where} {devices}")
    for process in gpu["processes"]:
        place = "".join(f" {key} {process[f'{key}_id']}" for key in ("gi", "ci") if process[f"{key}_id"] is not None)
        lines.append(f"  process {process['pid']} {process['name']} ({process['kind']}){place}")
    return lines


def _misbehaviour(what: dict[str, Any]) -> str:
    details = ", ".join(f"{name} {value}" for name, value in what.items() if value is not None and name != "kind")
    return f"{what['kind']}: {details}"
