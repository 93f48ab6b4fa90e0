"""The text of `tesela sim status`: a line per call that is held up, GPU, instance, process and fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tesela.edge.nvml import codes

_MODES = {0: "off", 1: "on"}
_CODES: dict[object, str] = {number: name for name, number in codes.RETURN_CODES.items()}


def render_status(status: dict[str, Any]) -> str:
    """The answer of the status operation as lines for people; `-o json` has every field."""
    lines = [_render_node(status)]
    lines.extend(f"under way: {_render_call(call)}" for call in status["calls"])
    for gpu in status["gpus"]:
        lines.append(f"{_render_gpu_name(gpu)} {_render_gpu(gpu)}")
        lines.extend(f"  gi {instance['gi_id']} {_render_instance(instance)}" for instance in gpu["instances"])
        lines.extend(f"  process {process['pid']} {_render_process(process)}" for process in gpu["processes"])
        if not is_as_new(gpu["health"]):
            lines.append(f"  health {render_health(gpu['health'])}")
    lines.extend(f"injected {_render_misbehaviour(what)}" for what in status["misbehaviours"])
    return "\n".join(lines)


def list_facts(status: dict[str, Any]) -> dict[str, str]:
    """The same by what each line is about, so that two moments can be compared."""
    facts = {"node": _render_node(status)}
    for gpu in status["gpus"]:
        name = _render_gpu_name(gpu)
        facts[name] = _render_gpu(gpu)
        for instance in gpu["instances"]:
            facts[f"{name} gi {instance['gi_id']}"] = _render_instance(instance)
        for process in gpu["processes"]:
            facts[f"{name} process {process['pid']}{_render_place(process)}"] = _render_process(process)
        facts[f"{name} health"] = render_health(gpu["health"])
    facts |= {f"under way: {_render_call(call)}": "" for call in status["calls"]}
    return facts | {f"injected {_render_misbehaviour(what)}": "" for what in status["misbehaviours"]}


def list_remarks(status: dict[str, Any]) -> Iterator[str]:
    """What the MIG map does not show: pending modes, processes, calls that are held up, faults."""
    for gpu in status["gpus"]:
        name = _render_gpu_name(gpu)
        if gpu["mig_pending"] != gpu["mig_current"]:
            yield f"{name} MIG {_render_mode(gpu)}"
        yield from (f"{name} process {process['pid']} {_render_process(process)}" for process in gpu["processes"])
    yield from (f"under way: {_render_call(call)}" for call in status["calls"])
    yield from (f"injected {_render_misbehaviour(what)}" for what in status["misbehaviours"])


def is_as_new(health: dict[str, Any]) -> bool:
    """Whether there is nothing to say about a GPU's health: ECC is on and stays on, and nothing ever happened."""
    return (health["ecc_current"], health["ecc_pending"], health["recovery_action"]) == (1, 1, "NONE") and not any(
        value for name, value in health.items() if name not in {"ecc_current", "ecc_pending", "recovery_action"}
    )


def render_health(health: dict[str, Any]) -> str:
    """One line: ECC errors since the last reset and of the GPU's life, remapped rows, recovery action."""
    if is_as_new(health):
        return "as new"
    mode = _MODES[health["ecc_current"]]
    if health["ecc_pending"] != health["ecc_current"]:
        mode += f" ({_MODES[health['ecc_pending']]} after a reset)"
    corrected, uncorrected = (
        f"{kind} {health[f'{kind}_volatile']} now, {health[f'{kind}_aggregate']} ever"
        for kind in ("corrected", "uncorrected")
    )
    correctable, uncorrectable = health["remapped_correctable"], health["remapped_uncorrectable"]
    rows = f"rows remapped: {correctable} correctable, {uncorrectable} uncorrectable"
    rows += ", pending" if health["remap_pending"] else ""
    rows += ", failure" if health["remap_failure"] else ""
    return f"ECC {mode}; {corrected}; {uncorrected}; {rows}; recovery action {health['recovery_action']}"


def _render_node(status: dict[str, Any]) -> str:
    return f"driver {status['driver_version']}, loaded {status['driver_loads']} time(s), boot {status['boot_id']}"


def _render_call(call: dict[str, Any]) -> str:
    gpu = f" on {call['gpu']}" if call["gpu"] else ""
    hint = "; `tesela sim release` lets it go on" if call["phase"] == "hung" else ""
    return f"{call['function']}{gpu} ({call['phase']}{hint})"


def _render_gpu_name(gpu: dict[str, Any]) -> str:
    index = "-" if gpu["index"] is None else gpu["index"]
    return f"GPU {index} {gpu['uuid']}"


def _render_gpu(gpu: dict[str, Any]) -> str:
    head = f"{gpu['product_name']} {gpu['pci_bus_id']} minor {gpu['minor']} MIG {_render_mode(gpu)}"
    return head if gpu["presence"] == "present" else f"{head} {gpu['presence'].upper()}"


def _render_mode(gpu: dict[str, Any]) -> str:
    mode = _MODES[gpu["mig_current"]]
    if gpu["mig_pending"] != gpu["mig_current"]:
        mode += f" ({_MODES[gpu['mig_pending']]} after a reset)"
    return mode


def _render_instance(instance: dict[str, Any]) -> str:
    placement = instance["placement"]
    made = instance["compute_instances"]
    devices = ", ".join(f"ci {c['ci_id']} {c['mig_uuid']}" for c in made) or "no compute instance"
    return f"{instance['profile']} at {placement['start']}:{placement['size']} {devices}"


def _render_process(process: dict[str, Any]) -> str:
    memory = f" {process['memory_bytes'] >> 20} MiB" if process["memory_bytes"] else ""
    kind = f"{process['kind']}, real" if process["real"] else process["kind"]
    return f"{process['name']} ({kind}){_render_place(process)}{memory}"


def _render_place(process: dict[str, Any]) -> str:
    return "".join(f" {key} {process[f'{key}_id']}" for key in ("gi", "ci") if process[f"{key}_id"] is not None)


def _render_misbehaviour(what: dict[str, Any]) -> str:
    # What was not asked for says nothing: no calls that pass first, and before the effect.
    unasked = {"kind": what["kind"], "after": 0, "when": "before"}
    said = {name: value for name, value in what.items() if value is not None and value != unasked.get(name)}
    if what.get("activation_status") is not None:
        del said["code"]
    details = (f"{name.replace('_', ' ')} {_render_value(name, value)}" for name, value in said.items())
    return f"{what['kind']}: {', '.join(details)}"


def _render_value(name: str, value: object) -> object:
    return _CODES.get(value, value) if name in {"code", "activation_status"} else value
