"""The calls of the simulator's protocol: one per method of the NVML port, with opcode, arguments and result.

Opcodes are never reused or renumbered; a new call gets a new one, and an older server answers it FUNCTION_NOT_FOUND.
docs/simulator-protocol.md has the same table; a test holds them equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tesela.core.model import Placement
from tesela.edge.nvml.port import (
    ComputeInstanceInfo,
    ComputeInstanceProfileInfo,
    EccMode,
    FabricInfo,
    GpuInstanceInfo,
    GpuInstanceProfileInfo,
    MemoryInfo,
    MigMode,
    PciInfo,
    ProcessInfo,
    RemappedRows,
)
from tesela.edge.simulator.events import Event, Registration
from tesela.edge.simulator.named_wire import NAMED_ANSWER, NAMED_REQUEST
from tesela.edge.simulator.wire import (
    I32,
    NOTHING,
    OPTIONAL_ID,
    OPTIONAL_VALUE,
    TEXT,
    U32,
    U64,
    Codec,
    Reader,
    pair,
    record,
    sequence,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """One call; `method` is the port's name, `served_by` the method of SimulatedNvml that takes these arguments."""

    opcode: int
    method: str
    arguments: tuple[Codec[Any], ...]
    result: Codec[R]
    served_by: str = ""

    def render_arguments(self, values: tuple[Any, ...]) -> bytes:
        """The payload of a request. DocumentError: a value does not fit its field."""
        out = bytearray()
        for codec, value in zip(self.arguments, values, strict=True):
            codec.put(out, value)
        return bytes(out)

    def parse_arguments(self, payload: bytes) -> tuple[Any, ...]:
        """The arguments in a request. DocumentError: the payload does not hold exactly them."""
        reader = Reader(payload)
        values = tuple(codec.take(reader) for codec in self.arguments)
        reader.finish()
        return values

    def render_result(self, value: R) -> bytes:
        """The payload of an answer."""
        out = bytearray()
        self.result.put(out, value)
        return bytes(out)

    def parse_result(self, payload: bytes) -> R:
        """The result in an answer. DocumentError: the payload does not hold exactly it."""
        reader = Reader(payload)
        value = self.result.take(reader)
        reader.finish()
        return value


PLACEMENT: Final = record(Placement, start=U32, size=U32)
PCI_INFO: Final = record(PciInfo, bus_id=TEXT, pci_device_id=U32)
MEMORY_INFO: Final = record(MemoryInfo, total_bytes=U64, free_bytes=U64, used_bytes=U64)
MIG_MODE: Final = record(MigMode, current=U32, pending=U32)
FABRIC_INFO: Final = record(FabricInfo, cluster_uuid=TEXT, clique_id=U32, state=U32, status=U32)
GI_PROFILE: Final = record(
    GpuInstanceProfileInfo,
    profile_id=U32,
    name=TEXT,
    slice_count=U32,
    instance_count=U32,
    multiprocessor_count=U32,
    copy_engine_count=U32,
    decoder_count=U32,
    encoder_count=U32,
    jpeg_count=U32,
    ofa_count=U32,
    memory_size_mib=U64,
)
CI_PROFILE: Final = record(
    ComputeInstanceProfileInfo,
    profile_id=U32,
    name=TEXT,
    slice_count=U32,
    instance_count=U32,
    multiprocessor_count=U32,
)
GI_INFO: Final = record(GpuInstanceInfo, gi_id=U32, profile_id=U32, placement=PLACEMENT)
CI_INFO: Final = record(ComputeInstanceInfo, ci_id=U32, gi_id=U32, profile_id=U32, mig_uuid=TEXT)
PROCESS_INFO: Final = record(ProcessInfo, pid=U32, gi_id=OPTIONAL_ID, ci_id=OPTIONAL_ID)
ECC_MODE: Final = record(EccMode, current=U32, pending=U32)
FLAG: Final[Codec[bool]] = Codec(U32.put, lambda reader: bool(U32.take(reader)))
REMAPPED_ROWS: Final = record(RemappedRows, correctable=U32, uncorrectable=U32, pending=FLAG, failure=FLAG)
REGISTRATION: Final = record(Registration, gpu_uuid=TEXT, mask=U64, since=U64)
EVENT: Final = record(Event, gpu_uuid=TEXT, event_type=U64, data=U64, gi_id=OPTIONAL_ID, ci_id=OPTIONAL_ID, number=U64)

# Enums and modes travel signed: NVML answers INVALID_ARGUMENT to a negative one, and so must the far side.
INIT: Final = Call(0x0001, "init", (), NOTHING)
SHUTDOWN: Final = Call(0x0002, "shutdown", (), NOTHING)
GET_DRIVER_VERSION: Final = Call(0x0010, "get_driver_version", (), TEXT)
GET_CUDA_DRIVER_VERSION: Final = Call(0x0011, "get_cuda_driver_version", (), U32)
GET_DEVICE_COUNT: Final = Call(0x0012, "get_device_count", (), U32)
GET_UUID: Final = Call(0x0013, "get_uuid", (I32,), TEXT)
GET_INDEX: Final = Call(0x0014, "get_index", (TEXT,), U32)
GET_MINOR_NUMBER: Final = Call(0x0015, "get_minor_number", (TEXT,), U32)
GET_NAME: Final = Call(0x0016, "get_name", (TEXT,), TEXT)
GET_BRAND: Final = Call(0x0017, "get_brand", (TEXT,), U32)
GET_ARCHITECTURE: Final = Call(0x0018, "get_architecture", (TEXT,), U32)
GET_CUDA_COMPUTE_CAPABILITY: Final = Call(0x0019, "get_cuda_compute_capability", (TEXT,), pair(U32, U32))
GET_PCI_INFO: Final = Call(0x001A, "get_pci_info", (TEXT,), PCI_INFO)
GET_MEMORY_INFO: Final = Call(0x001B, "get_memory_info", (TEXT,), MEMORY_INFO)
GET_ADDRESSING_MODE: Final = Call(0x001C, "get_addressing_mode", (TEXT,), TEXT)
GET_VIRTUALIZATION_MODE: Final = Call(0x001D, "get_virtualization_mode", (TEXT,), U32)
GET_FABRIC_INFO: Final = Call(0x001E, "get_fabric_info", (TEXT,), FABRIC_INFO)
GET_FIELD_VALUES: Final = Call(0x001F, "get_field_values", (TEXT, sequence(U32)), sequence(OPTIONAL_VALUE))
GET_MIG_MODE: Final = Call(0x0030, "get_mig_mode", (TEXT,), MIG_MODE)
SET_MIG_MODE: Final = Call(0x0031, "set_mig_mode", (TEXT, I32), U32)
GET_GPU_INSTANCE_PROFILE_INFO: Final = Call(0x0032, "get_gpu_instance_profile_info", (TEXT, I32), GI_PROFILE)
GET_GPU_INSTANCE_POSSIBLE_PLACEMENTS: Final = Call(
    0x0033, "get_gpu_instance_possible_placements", (TEXT, I32), sequence(PLACEMENT)
)
GET_GPU_INSTANCE_REMAINING_CAPACITY: Final = Call(0x0034, "get_gpu_instance_remaining_capacity", (TEXT, I32), U32)
CREATE_GPU_INSTANCE: Final = Call(0x0035, "create_gpu_instance", (TEXT, I32, PLACEMENT), GI_INFO)
GET_GPU_INSTANCES: Final = Call(0x0036, "get_gpu_instances", (TEXT, I32), sequence(GI_INFO))
GET_GPU_INSTANCE_BY_ID: Final = Call(0x0037, "get_gpu_instance_by_id", (TEXT, I32), GI_INFO)
DESTROY_GPU_INSTANCE: Final = Call(0x0038, "destroy_gpu_instance", (TEXT, I32), NOTHING)
GET_COMPUTE_INSTANCE_PROFILE_INFO: Final = Call(
    0x0039, "get_compute_instance_profile_info", (TEXT, I32, I32), CI_PROFILE
)
CREATE_COMPUTE_INSTANCE: Final = Call(0x003A, "create_compute_instance", (TEXT, I32, I32), CI_INFO)
GET_COMPUTE_INSTANCES: Final = Call(0x003B, "get_compute_instances", (TEXT, I32, I32), sequence(CI_INFO))
DESTROY_COMPUTE_INSTANCE: Final = Call(0x003C, "destroy_compute_instance", (TEXT, I32, I32), NOTHING)
GET_COMPUTE_RUNNING_PROCESSES: Final = Call(0x0050, "get_compute_running_processes", (TEXT,), sequence(PROCESS_INFO))
GET_GRAPHICS_RUNNING_PROCESSES: Final = Call(0x0051, "get_graphics_running_processes", (TEXT,), sequence(PROCESS_INFO))
GET_ECC_MODE: Final = Call(0x0053, "get_ecc_mode", (TEXT,), ECC_MODE)
GET_TOTAL_ECC_ERRORS: Final = Call(0x0054, "get_total_ecc_errors", (TEXT, I32, I32), U64, served_by="count_ecc_errors")
GET_REMAPPED_ROWS: Final = Call(0x0055, "get_remapped_rows", (TEXT,), REMAPPED_ROWS)
WAIT_EVENT: Final = Call(0x0070, "wait_event", (sequence(REGISTRATION), U32), EVENT)

CALLS: Final[dict[int, Call[Any]]] = {
    value.opcode: value for value in list(globals().values()) if isinstance(value, Call)
}

NAMED_CALL: Final = Call(0x0060, "call", (NAMED_REQUEST,), NAMED_ANSWER)
"""Not in CALLS, because it is no method of the port: it names the NVML function, and `named` has those."""
