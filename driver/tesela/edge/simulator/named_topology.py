"""Named calls about the place of a GPU in its machine: CPUs and memory nearby, the path to another GPU, NVLink.

The simulated machine has 64 CPUs on each NUMA node, in the order of the nodes. Two GPUs below one PCIe root meet at its
host bridge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import SimulatedGpu
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.rows import GpuRow, NodeRow, Row, number
from tesela.edge.simulator.targets import Asked, NamedAnswer, NamedRequest
from tesela.edge.simulator.telemetry import board_of

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

_ALL_CPUS_OF_A_NODE: Final = (1 << 64) - 1
_WORD_BITS: Final = 64
_MAX_WORDS: Final = 1024
_INTERNAL, _HOST_BRIDGE, _NODE, _SYSTEM = 0, 30, 40, 50
_NVLINK_VERSIONS: Final = {codes.ARCHITECTURE_AMPERE: 4, codes.ARCHITECTURE_HOPPER: 6}
_P2P_OK, _P2P_NOT_SUPPORTED = 0, 5
_READ, _WRITE, _NVLINK, _ATOMICS, _PCI = range(5)


@dataclass(frozen=True, slots=True)
class _Seat:
    """What a path to another GPU depends on."""

    uuid: str
    pcie_root: str | None
    numa_node: int | None
    mig: bool
    on_fabric: bool


def _seat(gpu: SimulatedGpu) -> _Seat:
    on_fabric = gpu.fabric is not None and gpu.fabric.state == codes.FABRIC_COMPLETED
    return _Seat(gpu.uuid, gpu.pcie_root, gpu.numa_node, gpu.mig == codes.MIG_ENABLED, on_fabric)


def _seats(machine: Machine, request: NamedRequest) -> tuple[_Seat, _Seat]:
    # One lock after the other: two calls with the GPUs the other way round would wait for each other.
    return machine.with_gpu(request.gpu, _seat), machine.with_gpu(request.text, _seat)


def _common_ancestor(machine: Machine, request: NamedRequest) -> NamedAnswer:
    first, second = _seats(machine, request)
    if first.uuid == second.uuid:
        return number(_INTERNAL)
    if first.pcie_root is not None and first.pcie_root == second.pcie_root:
        return number(_HOST_BRIDGE)
    if first.numa_node is not None and first.numa_node == second.numa_node:
        return number(_NODE)
    return number(_SYSTEM)


def _p2p_status(machine: Machine, request: NamedRequest) -> NamedAnswer:
    """MIG mode takes peer-to-peer access away; atomics and NVLink need the fabric on both sides."""
    (index,) = request.numbers
    first, second = _seats(machine, request)
    if index not in range(_PCI + 1) or first.uuid == second.uuid:
        raise Refused(codes.INVALID_ARGUMENT)
    linked = first.on_fabric and second.on_fabric
    allowed = not first.mig and not second.mig and (linked or index in {_READ, _WRITE, _PCI})
    return number(_P2P_OK if allowed else _P2P_NOT_SUPPORTED)


def _cpu_affinity(asked: Asked) -> NamedAnswer:
    words = _word_count(asked)
    node = _numa_node(asked.gpu)
    return NamedAnswer(tuple(_ALL_CPUS_OF_A_NODE if word == node else 0 for word in range(words)))


def _cpu_affinity_within_scope(asked: Asked) -> NamedAnswer:
    """A NUMA node is a socket here, so that both scopes are one."""
    if asked.request.numbers[1] not in {0, 1}:
        raise Refused(codes.INVALID_ARGUMENT)
    return _cpu_affinity(asked)


def _memory_affinity(asked: Asked) -> NamedAnswer:
    if asked.request.numbers[1] not in {0, 1}:
        raise Refused(codes.INVALID_ARGUMENT)
    words = _word_count(asked)
    at, bit = divmod(_numa_node(asked.gpu), _WORD_BITS)
    return NamedAnswer(tuple(1 << bit if word == at else 0 for word in range(words)))


def _word_count(asked: Asked) -> int:
    words = asked.request.numbers[0]
    if not 1 <= words <= _MAX_WORDS:
        raise Refused(codes.INVALID_ARGUMENT)
    return words


def _numa_node(gpu: SimulatedGpu) -> int:
    if gpu.numa_node is None:
        raise Refused(codes.NOT_SUPPORTED)
    return gpu.numa_node


def _numa_node_id(asked: Asked) -> NamedAnswer:
    return number(_numa_node(asked.gpu))


def _check_link(asked: Asked) -> None:
    links = board_of(asked.gpu).nvlinks
    if links is None:
        raise Refused(codes.NOT_SUPPORTED)
    if not 0 <= asked.request.numbers[0] < links:
        raise Refused(codes.INVALID_ARGUMENT)


def _nvlink_version(asked: Asked) -> NamedAnswer:
    """The third generation on Ampere, the fourth on Hopper, in the numbers of nvml.h."""
    _check_link(asked)
    return number(_NVLINK_VERSIONS[asked.gpu.model.architecture])


def _nvlink_state(asked: Asked) -> NamedAnswer:
    """On where the GPU has joined its fabric and MIG is off."""
    _check_link(asked)
    seat = _seat(asked.gpu)
    return number(int(seat.on_fabric and not seat.mig))


ROWS: Final[tuple[Row, ...]] = (
    NodeRow(function="nvmlDeviceGetTopologyCommonAncestor", takes_gpu=True, takes_text=True, rule=_common_ancestor),
    NodeRow(function="nvmlDeviceGetP2PStatus", numbers=1, takes_gpu=True, takes_text=True, rule=_p2p_status),
    GpuRow(function="nvmlDeviceGetCpuAffinity", target="G", numbers=1, rule=_cpu_affinity),
    GpuRow(function="nvmlDeviceGetCpuAffinityWithinScope", target="G", numbers=2, rule=_cpu_affinity_within_scope),
    GpuRow(function="nvmlDeviceGetMemoryAffinity", target="G", numbers=2, rule=_memory_affinity),
    GpuRow(function="nvmlDeviceGetNumaNodeId", target="G", rule=_numa_node_id),
    GpuRow(function="nvmlDeviceGetNvLinkVersion", target="G", numbers=1, rule=_nvlink_version),
    GpuRow(function="nvmlDeviceGetNvLinkState", target="G", numbers=1, rule=_nvlink_state),
)
