"""What NVML says now, for a bundle: read only, under the watchdog, each answer or the error in its place.

A library that is missing, a driver that is dead and a call that hangs are what a bundle is made for: each costs its own
line. Where NVML is released for maintenance it is not opened: that would hold the kernel module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tesela.cli.bundle_parts import Part
from tesela.cli.nvml_beside import open_beside
from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.model import GpuInstance
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import Nvml
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.plugin.partition import Partitions
from tesela.plugin.side_by_side import run_side_by_side

_FIELDS: Final = {
    "resetless_mig": codes.FIELD_RESETLESS_MIG,
    "remap_pending": codes.FIELD_REMAPPED_PENDING,
    "remap_failure": codes.FIELD_REMAPPED_FAILURE,
    "recovery_action": codes.FIELD_RECOVERY_ACTION,
}


def collect_nvml(state_dir: Path, open_nvml: Callable[[], Nvml], *, call_timeout_s: float, timeout_s: float) -> Part:
    """NVML's state of the node and of each GPU, those side by side; within `timeout_s` and a call's limit."""
    nvml = WatchedNvml(open_nvml(), timeout_s=call_timeout_s)
    with open_beside(state_dir, nvml):
        return _look(nvml, timeout_s)


def _look(nvml: WatchedNvml, timeout_s: float) -> Part:
    part = Part()
    node = {
        "driver_version": _ask(nvml.get_driver_version),
        "cuda_driver_version": _ask(nvml.get_cuda_driver_version),
        "device_count": _ask(nvml.get_device_count),
    }
    count = node["device_count"] if isinstance(node["device_count"], int) else 0
    looks = {index: partial(_look_at, nvml, index) for index in range(count)}
    found = run_side_by_side(looks, timeout_s=timeout_s, name="bundle")
    for index in looks:
        if index not in found:
            part.missing[f"nvml GPU at index {index}"] = f"it did not answer within {timeout_s:g} s"
    part.put_json("nvml.json", {**node, "gpus": [found[index] for index in sorted(found)]})
    if wedged := nvml.wedged_gpus():
        part.missing["nvml in part"] = f"a call hangs inside NVML: {', '.join(sorted(wedged))}"
    return part


def _look_at(nvml: Nvml, index: int) -> Mapping[str, Any]:
    uuid = _ask(lambda: nvml.get_uuid(index))
    if not isinstance(uuid, str):
        return {"index": index, "uuid": uuid}
    questions: dict[str, Callable[[], Any]] = {
        "name": lambda: nvml.get_name(uuid),
        "minor": lambda: nvml.get_minor_number(uuid),
        "pci": lambda: nvml.get_pci_info(uuid),
        "memory": lambda: nvml.get_memory_info(uuid),
        "mig_mode": lambda: nvml.get_mig_mode(uuid),
        "ecc_mode": lambda: nvml.get_ecc_mode(uuid),
        "ecc_uncorrected_volatile": lambda: nvml.get_total_ecc_errors(uuid, uncorrected=True, aggregate=False),
        "ecc_uncorrected_aggregate": lambda: nvml.get_total_ecc_errors(uuid, uncorrected=True, aggregate=True),
        "ecc_corrected_volatile": lambda: nvml.get_total_ecc_errors(uuid, uncorrected=False, aggregate=False),
        "remapped_rows": lambda: nvml.get_remapped_rows(uuid),
        "fields": lambda: dict(zip(_FIELDS, nvml.get_field_values(uuid, tuple(_FIELDS.values())), strict=True)),
        "fabric": lambda: nvml.get_fabric_info(uuid),
        "compute_processes": lambda: nvml.get_compute_running_processes(uuid),
        "graphics_processes": lambda: nvml.get_graphics_running_processes(uuid),
        "instances": lambda: _list_instances(nvml, uuid),
    }
    return {"index": index, "uuid": uuid, **{name: _ask(question) for name, question in questions.items()}}


def _list_instances(nvml: Nvml, gpu_uuid: str) -> list[Mapping[str, Any]]:
    """Walked by GPU instance, so that one without a compute instance is seen."""
    found: list[Mapping[str, Any]] = []
    partitions = Partitions(nvml)
    for enum in range(codes.GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = nvml.get_gpu_instance_profile_info(gpu_uuid, enum)
            instances = nvml.get_gpu_instances(gpu_uuid, profile.profile_id)
        except NvmlError as error:
            if error.code in (codes.NOT_SUPPORTED, codes.INVALID_ARGUMENT):
                continue
            raise
        for one in instances:
            instance = GpuInstance(
                gpu_uuid=gpu_uuid, profile_id=one.profile_id, placement=one.placement, gi_id=one.gi_id
            )
            compute = _ask(partial(partitions.list_compute_instances, instance))
            found.append({"profile": profile.name, "gpu_instance": asdict(one), "compute_instances": compute})
    return found


def _ask(question: Callable[[], Any]) -> Any:
    """The answer as JSON, or the error in its place."""
    try:
        return _render(question())
    except (NvmlError, NvmlTimeout) as error:
        return {"error": str(error)}


def _render(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_render(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
