"""The text that describes a simulated machine, as in `a100-40gb*4,h100-80gb:numa=1*2,seed=7`, and its refusals.

    machine = part ("," part)*
    part    = model (":" option)* ["*" count]  |  "seed=" number  |  "driver=" version  |  "shift-minors"
    option  = "mig" | "fabric" | "vgpu" | "numa=" (number | "unknown") | "pcie-root=" ("pci0000-64" | "unknown")

`mig`: MIG mode is on at start. `fabric`: the GPU sits behind NVSwitches and has joined its fabric. `vgpu`: it is a vGPU
inside a guest, from where MIG cannot be managed. `shift-minors`: a MIG toggle or a reboot moves device minors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.simulator.models import GpuModel, load_model

MAX_GPUS: Final = 32
"""Capability minors and /dev/nvidiaN leave room for 32 GPUs (`nvidia-caps/mig-minors`)."""
DEFAULT_DRIVER_VERSION: Final = "580.95.05"
_PART: Final = re.compile(r"^(?P<model>[a-z0-9-]+)(?P<options>(:[^:*]+)*)(\*(?P<count>[0-9]{1,4}))?$")
_PCIE_ROOT: Final = re.compile(r"^pci[0-9a-f]{4}:[0-9a-f]{2}$")
_DRIVER_VERSION: Final = re.compile(r"^[0-9]{3}(\.[0-9]{1,3}){1,2}$")
_FABRIC_ARCHITECTURES: Final = frozenset({codes.ARCHITECTURE_HOPPER})


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU as asked for. `numa_node` and `pcie_root`: None leaves the choice to the machine, "unknown" hides it."""

    model: GpuModel
    mig: bool = False
    fabric: bool = False
    vgpu: bool = False
    numa_node: int | str | None = None
    pcie_root: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A machine as asked for; equal specs build machines with equal GPU UUIDs."""

    gpus: tuple[GpuSpec, ...]
    seed: int = 0
    driver_version: str = DEFAULT_DRIVER_VERSION
    cuda_driver_version: int = 13000
    shift_minors: bool = False
    """A MIG toggle and a reboot move device minors, as on some systems."""
    illegal_start_code: int = codes.INVALID_ARGUMENT
    """What a legal profile at an illegal start answers; drivers are said to differ (or INSUFFICIENT_RESOURCES)."""


def parse_machine_spec(text: str) -> MachineSpec:
    """The machine that `text` describes. DocumentError: malformed, an unknown model, a machine nobody could build."""
    gpus: list[GpuSpec] = []
    settings: dict[str, str] = {}
    for part in (piece.strip() for piece in text.split(",")):
        key, equals, value = part.partition("=")
        if (equals and key in {"seed", "driver"}) or part == "shift-minors":
            if key in settings:
                raise DocumentError(key, "is given twice")
            settings[key] = value
        else:
            gpus.extend(_parse_gpus(part))
    return check_machine_spec(
        MachineSpec(
            gpus=tuple(gpus),
            seed=_number("seed", settings.get("seed", "0")),
            driver_version=settings.get("driver", DEFAULT_DRIVER_VERSION),
            shift_minors="shift-minors" in settings,
        )
    )


def check_machine_spec(spec: MachineSpec) -> MachineSpec:
    """`spec` itself. DocumentError: a machine nobody could build."""
    if not 1 <= len(spec.gpus) <= MAX_GPUS:
        raise DocumentError("gpus", f"{len(spec.gpus)} GPUs; a machine has 1 to {MAX_GPUS}")
    if not _DRIVER_VERSION.match(spec.driver_version):
        raise DocumentError("driver", f"{spec.driver_version!r} is no driver version such as {DEFAULT_DRIVER_VERSION}")
    if spec.illegal_start_code not in {codes.INVALID_ARGUMENT, codes.INSUFFICIENT_RESOURCES}:
        raise DocumentError("illegal_start_code", f"{spec.illegal_start_code} is not what a driver answers there")
    for gpu in spec.gpus:
        _check_gpu(gpu)
    return spec


def _parse_gpus(part: str) -> list[GpuSpec]:
    match = _PART.match(part)
    if match is None:
        raise DocumentError("gpus", f"cannot read {part!r}; expected MODEL[:OPTION...][*COUNT], as in a100-40gb:mig*2")
    spec = GpuSpec(model=load_model(match["model"]))
    for option in filter(None, match["options"].split(":")):
        spec = _with_option(spec, option)
    # Checked before the list is built, so that a typing error in the count costs nothing.
    count = int(match["count"] or "1")
    if not 1 <= count <= MAX_GPUS:
        raise DocumentError("gpus", f"{part!r} asks for {count} GPUs; a machine has 1 to {MAX_GPUS}")
    return [spec] * count


def _with_option(spec: GpuSpec, option: str) -> GpuSpec:
    match option.partition("="):
        case ("mig" | "fabric" | "vgpu" as flag, "", _):
            return replace(
                spec,
                mig=spec.mig or flag == "mig",
                fabric=spec.fabric or flag == "fabric",
                vgpu=spec.vgpu or flag == "vgpu",
            )
        case ("numa", "=", node):
            return replace(spec, numa_node=node if node == "unknown" else _number("numa", node))
        case ("pcie-root", "=", root):
            # A root such as pci0000:64 holds the separator of options, so it is written pci0000-64 here.
            return replace(spec, pcie_root=root.replace("-", ":"))
        case _:
            raise DocumentError("gpus", f"unknown option {option!r}; known are mig, fabric, vgpu, numa=, pcie-root=")


def _check_gpu(gpu: GpuSpec) -> None:
    if gpu.fabric and gpu.model.architecture not in _FABRIC_ARCHITECTURES:
        raise DocumentError("fabric", f"{gpu.model.model} has no NVSwitch fabric that NVML would report")
    if gpu.vgpu and (gpu.mig or gpu.fabric):
        raise DocumentError("vgpu", "a vGPU has neither a MIG mode of its own nor a fabric")
    if isinstance(gpu.numa_node, int) and not 0 <= gpu.numa_node < 64:
        raise DocumentError("numa", f"node {gpu.numa_node} is outside 0..63")
    if gpu.pcie_root not in {None, "unknown"} and not _PCIE_ROOT.match(gpu.pcie_root or ""):
        raise DocumentError("pcie-root", f"{gpu.pcie_root!r} is no root such as pci0000-64")


def _number(path: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise DocumentError(path, f"{text!r} is no number")
    return int(text)
