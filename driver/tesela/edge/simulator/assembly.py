"""Puts the GPUs of a simulated machine together from its specification: what they are when the machine is new."""

from __future__ import annotations

import uuid
from typing import Final

from tesela.edge.nvml import codes
from tesela.edge.nvml.port import FabricInfo
from tesela.edge.simulator.gpu import SimulatedGpu
from tesela.edge.simulator.spec import GpuSpec, MachineSpec

_NAMESPACE: Final = uuid.UUID("8f1e4c1a-4f0f-5d7e-9a57-7e5e1a000001")


def assemble_gpu(spec: MachineSpec, index: int) -> SimulatedGpu:
    """The GPU at `index` of the machine; equal specifications give equal UUIDs."""
    wanted = spec.gpus[index]
    # Two GPUs share a PCIe root; roots are spread over the bus numbers, the first half of the GPUs on NUMA node 0.
    root_bus = 0x04 + (index // 2) * 0x0F
    mode = codes.MIG_ENABLED if wanted.mig else codes.MIG_DISABLED
    return SimulatedGpu(
        uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{spec.seed}/{index}/{wanted.model.model}')}",
        model=wanted.model,
        minor=index,
        pci_bus_id=f"00000000:{root_bus + 3 + 4 * (index % 2):02X}:00.0",
        numa_node=_numa_node(wanted, index, len(spec.gpus)),
        pcie_root=None if wanted.pcie_root == "unknown" else wanted.pcie_root or f"pci0000:{root_bus:02x}",
        illegal_start_code=spec.illegal_start_code,
        new_mig_uuid=lambda: f"MIG-{uuid.uuid4()}",
        mig=mode,
        pending=mode,
        vgpu=wanted.vgpu,
        fabric=_fabric(spec) if wanted.fabric else None,
        fields={codes.FIELD_RESETLESS_MIG: int(wanted.model.resetless_mig)},
    )


def _numa_node(wanted: GpuSpec, index: int, count: int) -> int | None:
    match wanted.numa_node:
        case None:
            return 0 if index < (count + 1) // 2 else 1
        case int(node):
            return node
        case _:
            return None


def _fabric(spec: MachineSpec) -> FabricInfo:
    cluster = uuid.uuid5(_NAMESPACE, f"{spec.seed}/fabric")
    return FabricInfo(cluster_uuid=str(cluster), clique_id=0, state=codes.FABRIC_COMPLETED)
