"""Named calls that tell what a GPU is: names, serial number, PCI address, place in the machine, modes.

Nothing here depends on load; `telemetry` has what does, `boards` the facts that come from a board's specification.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import SimulatedGpu
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import NO_ANSWER, GpuRow, NodeRow, Row, always, not_supported, number, words
from tesela.edge.simulator.targets import Asked, NamedAnswer, NamedRequest
from tesela.edge.simulator.telemetry import board_of

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

_VENDOR: Final = 0x10DE
_ADDRESSING_MODES: Final = {"None": 0, "HMM": 1, "ATS": 2}
_COMPUTE_MODES: Final = frozenset(
    {codes.COMPUTE_MODE_DEFAULT, codes.COMPUTE_MODE_PROHIBITED, codes.COMPUTE_MODE_EXCLUSIVE_PROCESS}
)


def serial_number(gpu: SimulatedGpu) -> str:
    """Thirteen digits, as boards carry them; they follow from the UUID, so that equal machines have equal ones."""
    return str(10**12 + uuid.UUID(gpu.uuid.removeprefix("GPU-")).int % (9 * 10**12))


def pci_address(gpu: SimulatedGpu) -> tuple[int, int, int]:
    """Domain, bus and device."""
    domain, bus, device = gpu.pci_bus_id.removesuffix(".0").split(":")
    return int(domain, 16), int(bus, 16), int(device, 16)


def _name(asked: Asked) -> NamedAnswer:
    """A MIG device: the board's name and the profile, `1c.3g.20gb` where it is a part of its GPU instance."""
    product_name = asked.gpu.model.product_name
    if not asked.is_mig_device:
        return words(product_name)
    instance, compute = asked.mig_device()
    full = compute.profile.compute_slices == instance.profile.compute_slices
    part = "" if full else f"{compute.profile.name}."
    return words(f"{product_name} MIG {part}{instance.profile.name}")


def _pci_info(asked: Asked) -> NamedAnswer:
    """A MIG device has its GPU's address. No source lists the boards' subsystem ids, so that one is 0."""
    device_id = asked.gpu.model.pci_device_id << 16 | _VENDOR
    return NamedAnswer((*pci_address(asked.gpu), device_id, 0), asked.gpu.pci_bus_id)


def _board_id(asked: Asked) -> NamedAnswer:
    """Bus and device, as nvidia-smi shows it for boards with one GPU."""
    _, bus, device = pci_address(asked.gpu)
    return number(bus << 8 | device)


def _vbios_version(asked: Asked) -> NamedAnswer:
    vbios = board_of(asked.gpu).vbios
    if vbios is None:
        raise Refused(codes.NOT_SUPPORTED)
    return words(vbios)


def _gsp_firmware_version(asked: Asked) -> NamedAnswer:
    """The driver brings the firmware along, with its own version."""
    return words(asked.machine.spec.driver_version)


def _set_persistence_mode(asked: Asked) -> NamedAnswer:
    (mode,) = asked.request.numbers
    if mode not in {0, 1}:
        raise Refused(codes.INVALID_ARGUMENT)
    asked.gpu.persistence_mode = mode
    return NO_ANSWER


def _compute_mode(asked: Asked) -> NamedAnswer:
    compute = asked.compute_instance
    return number(asked.gpu.compute_mode if compute is None else compute.compute_mode)


def _set_compute_mode(asked: Asked) -> NamedAnswer:
    """With MIG on, only a MIG device has one that can be set (nvmlDeviceSetComputeMode)."""
    (mode,) = asked.request.numbers
    if mode not in _COMPUTE_MODES:
        raise Refused(codes.INVALID_ARGUMENT)
    if asked.compute_instance is not None:
        asked.compute_instance.compute_mode = mode
    elif asked.gpu.mig == codes.MIG_ENABLED:
        raise Refused(codes.NOT_SUPPORTED)
    else:
        asked.gpu.compute_mode = mode
    return NO_ANSWER


def _virtualization_mode(asked: Asked) -> NamedAnswer:
    return number(codes.VIRTUALIZATION_VGPU_GUEST if asked.gpu.vgpu else codes.VIRTUALIZATION_NONE)


def _nvml_version(machine: Machine, _request: NamedRequest) -> NamedAnswer:
    """CUDA's major number, then the driver's version, as in 13.580.95.05."""
    return words(f"{machine.spec.cuda_driver_version // 1000}.{machine.spec.driver_version}")


def _driver_branch(machine: Machine, _request: NamedRequest) -> NamedAnswer:
    return words(f"r{machine.spec.driver_version.partition('.')[0]}_00")


ROWS: Final[tuple[Row, ...]] = (
    NodeRow(function="nvmlSystemGetNVMLVersion", rule=_nvml_version),
    NodeRow(function="nvmlSystemGetDriverBranch", rule=_driver_branch),
    NodeRow(function="nvmlUnitGetCount", rule=lambda _machine, _request: number(0)),
    GpuRow(function="nvmlDeviceGetName", target="D", rule=_name),
    GpuRow(function="nvmlDeviceGetSerial", target="G", rule=lambda asked: words(serial_number(asked.gpu))),
    GpuRow(function="nvmlDeviceGetMinorNumber", target="G", rule=lambda asked: number(asked.gpu.minor)),
    GpuRow(function="nvmlDeviceGetBrand", target="D", rule=lambda asked: number(asked.gpu.model.brand)),
    GpuRow(function="nvmlDeviceGetArchitecture", target="D", rule=lambda asked: number(asked.gpu.model.architecture)),
    GpuRow(
        function="nvmlDeviceGetCudaComputeCapability",
        target="D",
        rule=lambda asked: NamedAnswer(asked.gpu.model.compute_capability),
    ),
    GpuRow(function="nvmlDeviceGetPciInfo_v3", target="D", rule=_pci_info),
    GpuRow(function="nvmlDeviceGetBoardId", target="G", rule=_board_id),
    GpuRow(function="nvmlDeviceGetVbiosVersion", target="G", rule=_vbios_version),
    GpuRow(function="nvmlDeviceGetBoardPartNumber", target="G", rule=not_supported),
    GpuRow(function="nvmlDeviceGetInforomImageVersion", target="G", rule=not_supported),
    GpuRow(function="nvmlDeviceGetGspFirmwareVersion", target="G", rule=_gsp_firmware_version),
    GpuRow(function="nvmlDeviceGetDisplayMode", target="G", rule=always(0)),
    GpuRow(function="nvmlDeviceGetDisplayActive", target="G", rule=always(0)),
    GpuRow(function="nvmlDeviceGetAccountingMode", target="G", rule=always(0)),
    GpuRow(function="nvmlDeviceSetAccountingMode", target="G", numbers=1, rule=not_supported),
    GpuRow(function="nvmlDeviceGetAccountingBufferSize", target="G", rule=always(4000)),
    GpuRow(function="nvmlDeviceGetGpuOperationMode", target="G", rule=not_supported),
    GpuRow(function="nvmlDeviceGetDriverModel_v2", target="G", rule=not_supported),
    GpuRow(function="nvmlDeviceGetHostVgpuMode", target="G", rule=not_supported),
    GpuRow(function="nvmlDeviceGetInforomConfigurationChecksum", target="G", rule=not_supported),
    GpuRow(function="nvmlDeviceGetGspFirmwareMode", target="G", rule=lambda _asked: NamedAnswer((1, 1))),
    GpuRow(function="nvmlDeviceGetMultiGpuBoard", target="G", rule=always(0)),
    GpuRow(function="nvmlDeviceGetVirtualizationMode", target="G", rule=_virtualization_mode),
    GpuRow(
        function="nvmlDeviceGetAddressingMode",
        target="D",
        rule=lambda asked: number(_ADDRESSING_MODES[asked.gpu.model.addressing_mode]),
    ),
    GpuRow(function="nvmlDeviceGetPersistenceMode", target="G", rule=lambda asked: number(asked.gpu.persistence_mode)),
    GpuRow(function="nvmlDeviceSetPersistenceMode", target="G", numbers=1, changes=True, rule=_set_persistence_mode),
    GpuRow(function="nvmlDeviceGetComputeMode", target="D", rule=_compute_mode),
    GpuRow(function="nvmlDeviceSetComputeMode", target="D", numbers=1, changes=True, rule=_set_compute_mode),
)
